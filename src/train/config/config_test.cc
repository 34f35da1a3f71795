#include "train/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "base/file.h"
#include "base/rng.h"
#include "train/config/keys.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

Result<Config> resolved(std::vector<std::string> assignments) {
  std::vector<Setting> settings;
  for (const auto& text : assignments) {
    MUSTER_TRY(Setting setting, parse_assignment(text));
    settings.push_back(std::move(setting));
  }
  return resolve(settings);
}

// One way to write them: keys with underscores, values that are words with dashes. Who mixes them is told.
TEST(Config, KeysHaveUnderscoresAndValuesDashes) {
  Config config;
  for (const Key& key : keys_of(config)) {
    EXPECT_THAT(key.name, testing::MatchesRegex("[a-z]+[.][a-z0-9_]+"));
    for (const std::string& choice : key.choices) EXPECT_THAT(choice, testing::MatchesRegex("[a-z0-9-]+"));
  }
  EXPECT_THAT(resolved({"train.micro-batch=2"}).error().message,
              HasSubstr("unknown key train.micro-batch; did you mean train.micro_batch?"));
  EXPECT_THAT(resolved({"checkpoint.resume=latest_valid"}).error().message,
              HasSubstr("latest-valid is needed"));
}

TEST(Config, DefaultsAreTheQuickstart) {
  const auto config = resolve({});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->preset, "quickstart");
  EXPECT_GT(config->model.layers, 0);
  EXPECT_EQ(config->sources.at("model.layers"), "preset quickstart");
}

TEST(Config, LaterLayersWinAndKeysOverrideThePreset) {
  std::vector<Setting> settings =
      *parse_toml("[model]\npreset = \"tiny\"\nlayers = 3\n[train]\nsteps = 10\n", "run.toml");
  settings.push_back(*parse_assignment("train.steps=20"));
  const auto config = resolve(settings);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->steps, 20);
  EXPECT_EQ(config->model.layers, 3);
  EXPECT_EQ(config->model.width, preset("tiny")->width);
  EXPECT_EQ(config->sources.at("train.steps"), "--set");
  EXPECT_EQ(config->sources.at("model.layers"), "run.toml");
}

TEST(Config, TextIsReadAsTomlThenAsString) {
  const auto config = resolved({"optim.lr=3e-4", "train.steps=1_000", "model.tied=true", "data.train=123",
                                "optim.clip=2", "data.validation=\"a b\"", "train.seed=\"7\""});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->lr, 3e-4);
  EXPECT_EQ(config->steps, 1000);
  EXPECT_TRUE(config->model.tied);
  EXPECT_EQ(config->train_data, "123");
  EXPECT_EQ(config->clip, 2.0);
  EXPECT_EQ(config->validation_data, "a b");
  EXPECT_EQ(config->seed, 7);
}

struct Refusal {
  const char* assignment;
  const char* says;
};
const Refusal kRefusals[] = {
    {"train.stepss=3", "--set: unknown key train.stepss; did you mean train.steps?"},
    {"zzz=3", "--set: unknown key zzz; all keys"},
    {"train.steps=many", "--set: train.steps = \"many\": a whole number from 1 to 1000000000000 is needed"},
    {"train.steps=0",
     "train.steps = 0: a whole number from 1 to 1000000000000 is needed; the default is 400"},
    {"train.steps=99999999999999999999", "train.steps = 1e+20: a whole number from 1 to 1000000000000"},
    {"train.sequence=2000000", "train.sequence = 2000000: a whole number from 1 to 1048576 is needed"},
    {"train.seed=-1", "train.seed = -1: a whole number from 0 to 9007199254740991 is needed"},
    {"train.seed=9007199254740992",
     "train.seed = 9007199254740992: a whole number from 0 to 9007199254740991"},
    {"run.threads=1025", "run.threads = 1025: a whole number from 0 to 1024 is needed; the default is 0"},
    {"data.ignored_token=-100",
     "data.ignored_token = -100: a whole number from -1 to 1048575 is needed; the default is -1"},
    {"model.norm_eps=0", "model.norm_eps = 0: a number from 1e-30 to 1 is needed; the default is 1e-05"},
    {"model.layers=0", "model.layers = 0: a whole number from 1 to 1024 is needed"},
    {"train.steps=1.5", "train.steps = 1.5: a whole number"},
    {"model.tied=1", "model.tied = 1: true or false"},
    {"optim.beta1=2", "optim.beta1 = 2: a number from 0 to 0.999999 is needed"},
    {"optim.beta1=1", "optim.beta1 = 1: a number from 0 to 0.999999 is needed"},
    {"optim.beta2=1.0", "optim.beta2 = 1: a number from 0 to 0.999999 is needed"},
    {"optim.eps=0", "optim.eps = 0: a number from 1e-30 to 1 is needed"},
    {"optim.eps=1e-300", "optim.eps = 1e-300: a number from 1e-30 to 1 is needed"},  // 0 in fp32
    {"optim.lr=nan", "optim.lr = \"nan\": a number from 0 to 100"},
    {"checkpoint.resume=no", "checkpoint.resume = \"no\": one of auto, required, latest-valid"},
    {"optim.min_lr=1", "optim.min_lr = 1 is above optim.lr = 0.001"},
    {"model.preset=huge", "model.preset"},
    {"model.rope_scaling=yarn", "model.rope_scaling = \"yarn\": one of default, linear, llama3 is needed"},
    {"model.max_sequence=64", "train.sequence = 256 is above model.max_sequence = 64"},
    {"train.steps", "--set train.steps: expected KEY=VALUE"},
    {"=3", "expected KEY=VALUE"},
};

TEST(Config, RefusesWithKeyValueAndWhatIsAllowed) {
  for (const Refusal& refusal : kRefusals) {
    const auto config = resolved({refusal.assignment});
    ASSERT_FALSE(config) << refusal.assignment;
    EXPECT_THAT(config.error().message, HasSubstr(refusal.says));
  }
}

TEST(Config, EveryNumberHasLimitsThatItsRefusalNames) {
  Config config;
  for (const Key& key : keys_of(config)) {
    if (std::holds_alternative<bool*>(key.target) || std::holds_alternative<std::string*>(key.target))
      continue;
    ASSERT_TRUE(std::isfinite(key.minimum) && std::isfinite(key.maximum)) << key.name;
    for (const double beyond : {key.minimum - 1, key.maximum * 2}) {
      EXPECT_THAT(assign(key, text_of(Scalar(beyond))).error().message, HasSubstr(" from ")) << key.name;
    }
  }
}

// Heads of the preset's width do not fit another stream; a width of a head that is given stays.
TEST(Config, TheDefaultPresetStaysUnlessASizeIsGiven) {
  const auto with = [](const char* text) { return resolve({*parse_assignment(text)}).value(); };
  EXPECT_EQ(with("model.tied=true").preset, "quickstart");
  EXPECT_EQ(with("model.tied=true").model.layers, preset("quickstart")->layers);
  EXPECT_EQ(with("model.norm_eps=1e-6").preset, "quickstart");
  EXPECT_EQ(with("model.layers=2").preset, "");  // of a shape of one's own all sizes are needed
  EXPECT_EQ(with("model.layers=2").model.width, 0);
  EXPECT_EQ(with("model.from=hf").preset, "");
}

TEST(Config, AHeadOfAPresetFollowsItsWidthAndHeads) {
  const auto head_dim = [](std::vector<std::string> assignments) -> std::int64_t {
    assignments.insert(assignments.begin(), {"model.preset=llama-5m", "model.vocab=64"});
    return validated(resolved(assignments).value().model).value().head_dim;
  };
  EXPECT_EQ(head_dim({}), 64);
  EXPECT_EQ(head_dim({"model.layers=3"}), 64);
  EXPECT_EQ(head_dim({"model.width=512"}), 128);
  EXPECT_EQ(head_dim({"model.heads=8"}), 32);
  EXPECT_EQ(head_dim({"model.width=512", "model.heads=16"}), 32);
  EXPECT_EQ(head_dim({"model.head_dim=48", "model.width=512"}), 48);
  EXPECT_EQ(resolved({"model.preset=llama-5m", "model.width=512"})->sources.count("model.head_dim"), 0U);
}

// A key refuses what the model would refuse.
TEST(Config, ModelKeysHaveTheLimitsOfTheModel) {
  for (const ModelLimit& limit : model_limits()) {
    const std::string key = "model." + std::string(limit.key);
    const auto at = [&](double value) { return resolved({key + "=" + text_of(Scalar(value))}); };
    EXPECT_THAT(at(limit.maximum * 2).error().message, HasSubstr(key + " = ")) << key;
    EXPECT_THAT(at(-1).error().message, HasSubstr(key + " = -1: ")) << key;
    EXPECT_EQ(at(0).has_value(), limit.minimum == 0 || limit.derived) << key;
    const auto most = resolved({"model.preset=tiny", key + "=" + text_of(Scalar(limit.maximum))});
    EXPECT_TRUE(most) << most.error().message;
  }
}

// It is not rounded down: what does not divide is refused where a model is made.
TEST(Config, AHeadDimOfZeroIsLeftToTheModel) {
  const auto config = resolved({"model.vocab=64", "model.layers=2", "model.width=100", "model.heads=6",
                                "model.kv_heads=6", "model.ffn=50"});
  ASSERT_TRUE(config) << config.error().message;
  const auto model = validated(config->model);
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, HasSubstr("model.width 100 is not a multiple of model.heads 6; change "
                                               "one, or set model.head_dim"));
}

TEST(Toml, BrokenFilesNameThePlace) {
  EXPECT_THAT(parse_toml("[train]\nsteps = \n", "run.toml").error().message, HasSubstr("run.toml:2:"));
  for (const char* text : {"[:", "[", "a = [1", "a = 1\na = 2", "= 3", "\xff\xfe"}) {
    EXPECT_FALSE(parse_toml(text, "run.toml")) << text;
  }
  EXPECT_THAT(parse_toml("[train]\nsteps = [1, 2]\n", "run.toml").error().message,
              HasSubstr("run.toml: train.steps: a number, a string, true or false is needed"));
  EXPECT_THAT(read_toml("/no/such.toml").error().message, HasSubstr("/no/such.toml"));
}

TEST(Job, HyperparametersAndChannels) {
  const TempDir root;
  std::filesystem::create_directories(root / "input/config");
  std::filesystem::create_directories(root / "input/data/train");
  std::filesystem::create_directories(root / "input/data/tokenizer");
  ASSERT_TRUE(write_file_atomic(root / "input/data/tokenizer/tokenizer.model", "x"));
  ASSERT_TRUE(write_file_atomic(root / "input/config/hyperparameters.json",
                                R"({"train.steps": "30", "optim.lr": "\"2e-3\"", "model.preset": "\"tiny\"",
                                    "sagemaker_program": "x.py"})"));
  const auto job = read_job(root.path());
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_TRUE(job->in_job);
  EXPECT_THAT(job->notices, testing::ElementsAre(HasSubstr("no CheckpointConfig"),
                                                 HasSubstr("sagemaker_program is ignored")));
  const auto config = resolve(job->settings);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->steps, 30);
  EXPECT_EQ(config->lr, 2e-3);
  EXPECT_EQ(config->preset, "tiny");
  EXPECT_EQ(config->train_data, root / "input/data/train");
  EXPECT_EQ(config->validation_data, "");
  EXPECT_EQ(config->tokenizer, root / "input/data/tokenizer/tokenizer.model");
  EXPECT_EQ(config->output_dir, root / "model");
  EXPECT_EQ(config->checkpoint_dir, root / "checkpoints");
  ASSERT_TRUE(write_file_atomic(root / "input/config/checkpointconfig.json",
                                R"({"S3Uri":"s3://b/c","LocalPath":"/elsewhere"})"));
  EXPECT_EQ(resolve(read_job(root.path())->settings)->checkpoint_dir, "/elsewhere");
}

TEST(Job, AWholeFileComesInAChannel) {
  const TempDir root;
  std::filesystem::create_directories(root / "input/config");
  std::filesystem::create_directories(root / "input/data/config");
  std::filesystem::create_directories(root / "input/data/train");
  ASSERT_TRUE(write_file_atomic(root / "input/config/hyperparameters.json", R"({"train.steps": "30"})"));
  EXPECT_THAT(read_job(root.path()).error().message, HasSubstr("channel config has no *.toml in"));
  const std::string file = root / "input/data/config/run.toml";
  ASSERT_TRUE(write_file_atomic(root / "input/data/config/README", "not it"));
  ASSERT_TRUE(write_file_atomic(file,
                                "model.preset = \"tiny\"\n[train]\nsteps = 10\nbatch = 7\n"
                                "[data]\ntrain = \"/mine\"\n"));
  const auto config = resolve(read_job(root.path())->settings);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->batch, 7);
  EXPECT_EQ(config->sources.at("train.batch"), file);
  EXPECT_EQ(config->steps, 30);            // a hyperparameter wins
  EXPECT_EQ(config->train_data, "/mine");  // over the channel
  EXPECT_EQ(config->output_dir, root / "model");
  ASSERT_TRUE(write_file_atomic(root / "input/data/config/b.toml", ""));
  EXPECT_THAT(
      read_job(root.path()).error().message,
      HasSubstr("channel config has 2 TOML files, " + root / "input/data/config/b.toml" + ", " + file));
  std::filesystem::remove(root / "input/data/config/b.toml");
  ASSERT_TRUE(write_file_atomic(file, "[train]\nstep = 10\n"));
  EXPECT_THAT(resolve(read_job(root.path())->settings).error().message,
              HasSubstr("run.toml: unknown key train.step; did you mean train.steps?"));
}

// Numbers and flags as TOML has them, anything else as a string; one layer of JSON quotes goes.
TEST(Job, HyperparametersAreReadAsTomlScalars) {
  const TempDir root;
  std::filesystem::create_directories(root / "input/config");
  const auto read = [&](const std::string& json) {
    EXPECT_TRUE(write_file_atomic(root / "input/config/hyperparameters.json", json));
    return resolve(read_job(root.path())->settings);
  };
  const auto config = read(R"({"train.steps": "\"1_000\"", "optim.lr": "+2e-3", "model.tied": "\"true\"",
                               "optim.clip": "2", "data.train": "\"\\\"s3\\\"\"", "train.seed": 7,
                               "sagemaker_region": "\"us-east-1\"", "sagemaker_program": "x"})");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->steps, 1000);
  EXPECT_EQ(config->lr, 2e-3);
  EXPECT_TRUE(config->model.tied);
  EXPECT_EQ(config->clip, 2.0);
  EXPECT_EQ(config->train_data, "\"s3\"");  // one layer
  EXPECT_EQ(config->seed, 7);
  EXPECT_EQ(read_job(root.path())->notices.size(), 3u);
  EXPECT_THAT(read(R"({"train.steps": "ten"})").error().message,
              HasSubstr("hyperparameters.json: train.steps = \"ten\": a whole number"));
}

TEST(Job, BadHyperparametersAreNamed) {
  const TempDir root;
  EXPECT_FALSE(read_job(root.path())->in_job);
  std::filesystem::create_directories(root / "input/config");
  ASSERT_TRUE(write_file_atomic(root / "input/config/hyperparameters.json", R"({"epochs": "3"})"));
  EXPECT_THAT(resolve(read_job(root.path())->settings).error().message,
              HasSubstr("hyperparameters.json: unknown key epochs"));
  ASSERT_TRUE(write_file_atomic(root / "input/config/hyperparameters.json", "[1]"));
  EXPECT_THAT(read_job(root.path()).error().message, HasSubstr("hyperparameters.json"));
}

// A folder in the place of a file is opened, but cannot be read, even by root.
TEST(Job, ACheckpointConfigThatCannotBeReadIsAnError) {
  const TempDir root;
  const std::string file = root / "input/config/checkpointconfig.json";
  std::filesystem::create_directories(file);
  ASSERT_TRUE(write_file_atomic(root / "input/config/hyperparameters.json", "{}"));
  EXPECT_THAT(read_job(root.path()).error().message, HasSubstr(file));
  std::filesystem::remove(file);
  EXPECT_TRUE(read_job(root.path()));
}

TEST(Resume, ClassesDecide) {
  const auto before = resolved({"train.steps=100", "optim.lr=0.01"});
  ASSERT_TRUE(before);
  const json::Object stored = to_json(*before);
  const auto check = [&](std::vector<std::string> changes, std::set<std::string> accepted) -> std::string {
    changes.insert(changes.begin(), {"train.steps=100", "optim.lr=0.01"});
    const auto now = resolved(changes);
    EXPECT_TRUE(now);
    const auto answer = check_resume(stored, *now, accepted);
    return answer ? "" : answer.error().message;
  };
  EXPECT_EQ(check({}, {}), "");
  EXPECT_EQ(check({"log.every=1", "mesh.replica=2", "checkpoint.dir=/x"}, {}), "");
  EXPECT_THAT(check({"model.layers=9"}, {"model.layers"}), HasSubstr("is 9 (identity: put it back"));
  EXPECT_THAT(check({"train.steps=200"}, {}),
              HasSubstr("train.steps was 100, is 200 (trajectory: put it back, or give --accept train.steps, "
                        "in a job as ContainerArguments)"));
  EXPECT_EQ(check({"train.steps=200"}, {"train.steps"}), "");
  const std::string both = check({"train.seed=5", "optim.lr=0.5"}, {});
  EXPECT_THAT(both, HasSubstr("train.seed was 1, is 5"));
  EXPECT_THAT(both, HasSubstr("optim.lr was 0.01, is 0.5"));
}

// Whatever key a resumed run changes, its class alone decides.
TEST(Resume, EveryKeyFollowsItsClass) {
  Config before = *resolved({});
  const json::Object stored = to_json(before);
  for (std::size_t i = 0; i < keys_of(before).size(); ++i) {
    Config after = before;
    const Key key = keys_of(after)[i];
    std::visit(
        [](auto* target) {
          using T = std::decay_t<decltype(*target)>;
          if constexpr (std::is_same_v<T, bool>) {
            *target = !*target;
          } else if constexpr (std::is_same_v<T, std::string>) {
            *target += "x";
          } else {
            *target += 1;
          }
        },
        key.target);
    const auto plain = check_resume(stored, after, {}), accepted = check_resume(stored, after, {key.name});
    EXPECT_EQ(plain.has_value(), key.key_class == KeyClass::operational) << key.name;
    EXPECT_EQ(accepted.has_value(), key.key_class != KeyClass::identity) << key.name;
    if (!plain) {
      EXPECT_THAT(plain.error().message, HasSubstr(key.name + " was "));
    }
    EXPECT_EQ(check_accepted({key.name}).has_value(), key.key_class == KeyClass::trajectory) << key.name;
  }
  EXPECT_THAT(check_accepted({"train.stepz"}).error().message,
              HasSubstr("--accept: unknown key train.stepz; did you mean train.steps?"));
}

TEST(Json, RoundTripKeepsEveryBit) {
  const auto config = resolved({"optim.lr=0.1234567890123456789", "optim.eps=1e-30", "model.preset=tiny"});
  ASSERT_TRUE(config);
  const auto text = json::dump(to_json(*config));
  const auto again = from_json(*json::parse_object(text));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(json::dump(to_json(*again)), text);
  EXPECT_EQ(again->lr, config->lr);
  EXPECT_EQ(again->eps, config->eps);
}

// What a checkpoint stores is read back exactly, so a run that has not changed is let go on.
TEST(Resume, AnyNumberIsTheSameAfterTheCheckpoint) {
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  Rng rng(seed);
  for (int i = 0; i < 1'000; ++i) {
    Config config = *resolve({});
    config.lr = std::exp(-20 * rng.uniform());
    config.min_lr = config.lr * rng.uniform();
    config.clip = 1e6 * rng.uniform();
    config.model.norm_eps = std::exp(-69 * rng.uniform());
    const auto stored = json::parse_object(json::dump(to_json(config)));
    ASSERT_TRUE(stored) << stored.error().message;
    const auto same = check_resume(*stored, config, {});
    ASSERT_TRUE(same) << same.error().message << ", seed " << seed;
  }
}

TEST(Explain, ShowsEveryKeyWithSourceAndClass) {
  const auto config = resolved({"train.steps=77"});
  const std::string text = explain(*config);
  EXPECT_THAT(text, testing::ContainsRegex("train.steps +77 +trajectory +--set +Optimizer steps"));
  EXPECT_THAT(text, testing::ContainsRegex("model.layers +[0-9]+ +identity +preset quickstart"));
  EXPECT_THAT(text, HasSubstr("(auto, required, latest-valid)"));
  EXPECT_THAT(text, HasSubstr("Seed of weights and data order (0 to 9007199254740991)\n"));
  Config copy = *config;
  std::set<std::string> names;
  for (const Key& key : keys_of(copy)) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_GT(key.help.size(), 5u) << key.name;
    EXPECT_THAT(text, testing::ContainsRegex("\n" + key.name + " +[^\n]* " +
                                             std::string(to_string(key.key_class)) + " +[^\n]+"))
        << key.name;
  }
}

TEST(Explain, LongValuesAreWhole) {
  std::string folders = "/data/0";
  for (int i = 1; i < 12; ++i)
    folders += ",/data/a/long/name/of/a/folder/with/shards/number/" + std::to_string(i);
  const Config config = *resolved({"data.train=" + folders});
  EXPECT_THAT(explain(config), testing::ContainsRegex("\n" + std::string("data.train +\"") + folders +
                                                      "\" [a-z]+ +--set +[^\n]+\ndata"));
}

}  // namespace
}  // namespace muster::train
