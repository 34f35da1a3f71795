// What muster-train does when all goes well, and its command line.
#include <fcntl.h>
#include <unistd.h>

#include "apps/muster-train/test_program.h"
#include "base/text.h"
#include "train/comm/gloo/gloo.h"

namespace muster::train {
namespace {

TEST_F(Program, TrainsEvaluatesAndWrites) {
  const TempDir out;
  // A token of the held-out text is padding here: whoever counts it has another loss.
  std::int64_t padding = 0;
  ASSERT_TRUE(text::ShardSet::open(shared("held-out"))->read(1, {&padding, 1}));
  const auto run = finish(start(train_arguments(
      shared("train"),
      sets({"data.validation=" + shared("held-out"), "data.tokenizer=" + shared("tokenizer/tokenizer.model"),
            "output.dir=" + out / "model", "checkpoint.dir=" + out / "ckpt", "train.steps=30", "log.every=10",
            "data.ignored_token=" + std::to_string(padding)}) +
          std::vector<std::string>{"--nproc", "2"})));
  ASSERT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, HasSubstr("start ranks=2 "));
  EXPECT_THAT(run.out, ContainsRegex("\nstep=30/30 loss=[0-9.]+ grad_norm=[0-9.]+ lr=[0-9.e+-]+ "
                                     "tokens_per_s=[0-9]+ rss_mib=[0-9]+ left_s=0\n"));
  const auto value_after = [&](const std::string& head, const std::string& name) {
    const auto at = run.out.find(name + "=", run.out.find(head));
    return std::atof(run.out.c_str() + at + name.size() + 1);
  };
  EXPECT_LT(value_after("eval step=30", "bits_per_byte"), value_after("eval step=0", "bits_per_byte") - 0.2);

  const auto evaluated =
      finish(start({"eval", "--model", out / "model", "--data", shared("held-out"), "--windows", "64"}));
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NEAR(std::atof(evaluated.out.c_str() + evaluated.out.find("loss=") + 5),
              value_after("eval step=30", "loss"), 2e-4);
  EXPECT_EQ(std::atof(evaluated.out.c_str() + evaluated.out.find("tokens=") + 7),
            value_after("eval step=30", "tokens"));

  const std::vector<std::string> generate = {"generate", "--model",  out / "model", "--prompt",
                                             "the cat",  "--tokens", "20"};
  const auto one = finish(start(generate)),
             two = finish(start(generate + std::vector<std::string>{"--seed", "0"}));
  const auto other = finish(start(generate + std::vector<std::string>{"--seed", "5"}));
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, testing::StartsWith("the cat"));
  EXPECT_GT(one.out.size(), 20u);
  EXPECT_EQ(one.out, two.out);
  EXPECT_NE(one.out, other.out);

  const auto listed = finish(start({"ckpt", "verify", out / "ckpt"}));
  EXPECT_EQ(listed.code, 0);
  EXPECT_THAT(listed.out, ContainsRegex("STEP +SIZE +STATE\n30 +[0-9.]+ [KM]iB +whole\n"));
  const auto converted = finish(start({"ckpt", "convert", out / "ckpt", out / "slim", "--weights-only"}));
  EXPECT_EQ(converted.code, 0) << converted.err;
  EXPECT_THAT(converted.out,
              ContainsRegex("step 30 of .*: [0-9]+ tensors, [0-9.]+ [KM]iB in 1 file in .*/step-30"));
  const auto slim =
      finish(start({"eval", "--model", out / "slim", "--data", shared("held-out"), "--windows", "64"}));
  EXPECT_EQ(slim.out, evaluated.out) << slim.err;
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "slim"})).err,
              HasSubstr("is there already"));
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "x", "--step", "7"})).err,
              HasSubstr("step-7/manifest.json is not there"));
  fs::resize_file(out / "ckpt/step-30/rank-1.bin", 100);
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "x"})).err,
              HasSubstr("damaged: step-30/rank-1.bin has 100 bytes"));
  const auto damaged = finish(start({"ckpt", "ls", out / "ckpt"}));
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, HasSubstr("damaged: step-30/rank-1.bin has 100 bytes"));
}

// Out as a Hugging Face folder, and in again: as it is, and to train on in another layout.
TEST_F(Program, GoesThroughHuggingFacesForm) {
  const TempDir out;
  const auto trained = finish(
      start(train_arguments(shared("train"), sets({"data.tokenizer=" + shared("tokenizer/tokenizer.model"),
                                                   "output.dir=" + out / "model", "train.steps=20"}))));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string hf = out / "hf", half = out / "half", again = out / "again";
  const auto exported = finish(start(
      {"export", "--model", out / "model", "--output", hf, "--dtype", "fp32", "--max-shard-size", "50KB"}));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out,
              ContainsRegex("^export step=20 path=.* dtype=float32 parameters=[0-9]+ files=[2-9] "));
  EXPECT_TRUE(fs::exists(hf + "/model.safetensors.index.json"));

  // The same model by every command.
  const auto same = [&](std::vector<std::string> command, const std::vector<std::string>& more) {
    std::vector<std::string> outputs;
    for (const std::string& folder : {out / "model", hf}) {
      const auto done = finish(start(command + std::vector<std::string>{"--model", folder} + more));
      EXPECT_EQ(done.code, 0) << done.err;
      outputs.push_back(done.out.substr(done.out.find("split=") + 1));  // behind eval's step
    }
    EXPECT_EQ(outputs[0], outputs[1]);
    EXPECT_GT(outputs[0].size(), 20u);
  };
  same({"eval"}, {"--data", shared("held-out"), "--sequence", "16"});
  same({"generate"}, {"--prompt", "the cat", "--tokens", "8"});
  same({"logits"}, {"--tokens", "5,6,7"});

  // bf16 twice is bf16 once.
  ASSERT_EQ(finish(start({"export", "--model", hf, "--output", half})).code, 0);
  ASSERT_EQ(finish(start({"export", "--model", half, "--output", again})).code, 0);
  EXPECT_EQ(read_file(half + "/model.safetensors").value(), read_file(again + "/model.safetensors").value());
  EXPECT_EQ(read_file(again + "/tokenizer.model").value(),
            read_file(shared("tokenizer/tokenizer.model")).value());
  // The last weight becomes NaN: no command works with it.
  const std::string broken = out / "broken";
  fs::copy(again, broken, fs::copy_options::recursive);
  std::string weights = *read_file(broken + "/model.safetensors");
  weights.replace(weights.size() - 2, 2, "\xc0\x7f");
  ASSERT_TRUE(write_file_atomic(broken + "/model.safetensors", weights));
  for (const auto& command : {std::vector<std::string>{"eval", "--data", shared("held-out")},
                              {"generate", "--prompt", "the cat"},
                              {"logits", "--tokens", "5"},
                              {"export", "--output", out / "none"}}) {
    const auto run = finish(start(command + std::vector<std::string>{"--model", broken}));
    EXPECT_EQ(run.code, 1) << command[0];
    EXPECT_THAT(run.err, HasSubstr(broken + ": tensor ")) << command[0];
    EXPECT_THAT(run.err, HasSubstr(" has a weight that is NaN")) << command[0];
    EXPECT_EQ(run.out, "") << command[0];
  }
  EXPECT_FALSE(fs::exists(out / "none"));
  const auto twice = finish(start({"export", "--model", hf, "--output", half}));
  EXPECT_EQ(twice.code, 1);
  EXPECT_THAT(twice.err, HasSubstr("is there already; choose another folder"));

  const auto went_on =
      finish(start(std::vector<std::string>{"train", "--job-root", "/nonexistent", "--nproc", "2"} +
                   sets({"model.from=" + hf, "data.train=" + shared("train"), "train.sequence=16",
                         "mesh.tp=2", "train.batch=4", "train.steps=1",
                         "data.validation=" + shared("held-out"), "eval.windows=1000"})));
  EXPECT_EQ(went_on.code, 0) << went_on.err;
  const auto evaluated =
      finish(start({"eval", "--model", hf, "--data", shared("held-out"), "--sequence", "16"}));
  const auto loss_in = [](const std::string& text) {
    return std::atof(text.c_str() + text.find(" loss=") + 6);
  };
  EXPECT_NEAR(loss_in(went_on.out.substr(went_on.out.find("eval step=0"))), loss_in(evaluated.out), 1e-3);
}

TEST_F(Program, ExportsAnyStepOfACheckpoint) {
  const TempDir out;
  const auto trained = finish(start(train_arguments(
      shared("train"), sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=2", "train.steps=4"}))));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto weights = [&](const std::string& name) {
    return read_file(out / name + "/model.safetensors").value_or("");
  };
  const auto newest = finish(start({"ckpt", "export", out / "ckpt", out / "newest"}));
  EXPECT_THAT(newest.out, testing::StartsWith("export step=4 ")) << newest.err;
  const auto second = finish(start({"ckpt", "export", out / "ckpt", out / "second", "--step", "2"}));
  EXPECT_THAT(second.out, testing::StartsWith("export step=2 ")) << second.err;
  const auto other =
      finish(start({"export", "--model", out / "ckpt", "--output", out / "other", "--step", "2"}));
  EXPECT_THAT(other.out, testing::StartsWith("export step=2 ")) << other.err;
  EXPECT_GT(weights("second").size(), 1000u);
  EXPECT_EQ(weights("second"), weights("other"));
  EXPECT_NE(weights("second"), weights("newest"));
  const auto missing = finish(start({"ckpt", "export", out / "ckpt", out / "x", "--step", "3"}));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("step-3/manifest.json is not there"));
}

// A stage may send and receive at once what its neighbours receive first and answer later: over sockets, too.
TEST_F(Program, PipelinesOverSocketsTrainAsOneRank) {
  const auto steps = [&](const std::vector<std::string>& more) {
    const auto run = finish(start(train_arguments(
        shared("train"),
        sets({"model.layers=3", "train.batch=8", "train.steps=3", "log.every=1", "run.timeout_s=20"}) +
            more)));
    EXPECT_EQ(run.code, 0) << run.err;
    std::string lines;
    for (const auto line : split(run.out, '\n')) {
      if (line.starts_with("step=")) lines.append(line.substr(0, line.find(" lr="))).append("\n");
    }
    return lines;
  };
  const std::string alone = steps({});
  EXPECT_THAT(alone, HasSubstr("step=3/3 loss="));
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    EXPECT_EQ(
        steps(sets({"mesh.pp=3", "mesh.schedule=" + schedule}) + std::vector<std::string>{"--nproc", "3"}),
        alone)
        << schedule;
  }
}

// Each process is a rank, as torchrun starts them; rank 0 hosts the store, since nobody says that an agent
// does.
TEST_F(Program, UnderTorchrunsVariablesAProcessIsARank) {
  auto listener = listen_for_store("127.0.0.1", 0);
  const std::string port = std::to_string((*start_store("127.0.0.1", *std::move(listener)))->port());
  std::vector<Child> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(
        start(train_arguments(shared("train"), sets({"train.steps=3"})), {{"RANK", rank},
                                                                          {"LOCAL_RANK", rank},
                                                                          {"WORLD_SIZE", "2"},
                                                                          {"LOCAL_WORLD_SIZE", "2"},
                                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                                          {"MASTER_PORT", port}}));
  }
  const auto first = finish(ranks[0]), second = finish(ranks[1]);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.out, HasSubstr("start ranks=2 "));
  EXPECT_THAT(first.out, HasSubstr("done step=3/3"));
  EXPECT_EQ(second.out, "");
}

TEST(CommandLine, NumbersOutsideOfTheirLimitsAreRefusedWithBoth) {
  const std::vector<std::string> eval = {"eval", "--model", "x", "--data", "x"},
                                 logits = {"logits", "--model", "x"},
                                 exporting = {"export", "--model", "x", "--output", "y"};
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& message) {
    const auto run = finish(start(arguments));
    EXPECT_EQ(run.code, 2) << message;
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, testing::StartsWith(message + "\n"));
  };
  refused(eval + std::vector<std::string>{"--windows", "0"},
          "--windows: \"0\" is not a whole number from 1 to 1000000000000");
  refused(eval + std::vector<std::string>{"--sequence", "0"},
          "--sequence: \"0\" is not a whole number from 1 to 1048576");
  refused({"generate", "--model", "x", "--temperature", "nan"},
          "--temperature: \"nan\" is not a number from 0 to 100");
  for (const char* size : {"-1", "0"}) {
    refused(exporting + std::vector<std::string>{"--max-shard-size", size},
            "--max-shard-size: \"" + std::string(size) +
                "\" is not a size from 1000 to 1000000000000000 bytes, for example 500MB or 5GB");
  }
  refused(logits + std::vector<std::string>{"--tokens", "99999999999999999999"},
          "--tokens: \"99999999999999999999\" is not a whole number from 0 to 2147483647");
  refused(logits + std::vector<std::string>{"--tokens", "1,,2"},
          "--tokens: \"\" is not a whole number from 0 to 2147483647, in 1,,2");
}

TEST(CommandLine, BadArgumentsAndHelp) {
  EXPECT_EQ(finish(start({})).code, 2);
  EXPECT_EQ(finish(start({"fly"})).code, 2);
  const auto help = finish(start({"--help"}));
  EXPECT_EQ(help.code, 0);
  for (const char* word :
       {"train", "eval", "generate", "export", "logits", "config", "ckpt", "version", "Exit codes"})
    EXPECT_THAT(help.out, HasSubstr(word));
  EXPECT_THAT(finish(start({"train", "--help"})).out, testing::Not(HasSubstr("--local-rank")));
  EXPECT_THAT(finish(start({"version"})).out, testing::StartsWith("muster-train "));
  const auto nothing = finish(start({"train", "--job-root", "/nonexistent"}));
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("data.train is not set"));
  // What only the ranks find out is shown once, too.
  const auto absent = finish(start({"--nproc", "3", "--job-root", "/nonexistent", "--set",
                                    "data.train=/no/such", "--set", "train.batch=12"}));
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.err,
              ContainsRegex("^(\\[rank [12]\\] )?muster-train: rank [0-2]: tokens of /no/such: [^\n]*\n"
                            "rank [0-2] ended with exit code 1\n$"));
  const auto uneven = finish(start({"--nproc", "3", "--job-root", "/nonexistent", "--set", "data.train=x"}));
  EXPECT_EQ(uneven.code, 2);
  EXPECT_THAT(uneven.err, HasSubstr("multiple of 12; 12 and 24 are the nearest"));
  const auto explained =
      finish(start({"config", "--explain", "--set", "train.steps=7", "--job-root", "/nonexistent"}));
  EXPECT_EQ(explained.code, 0);
  EXPECT_THAT(explained.out, ContainsRegex("train.steps +7 +trajectory +--set"));
  EXPECT_THAT(finish(start({"train", "--job-root", "/nonexistent", "--set", "data.train=x", "--accept",
                            "optim.lr,train.stepz"}))
                  .err,
              HasSubstr("--accept: unknown key train.stepz; did you mean train.steps? all keys: "));
  EXPECT_EQ(finish(start({"ckpt", "ls", "/nonexistent"})).code, 1);
  EXPECT_THAT(finish(start({"eval", "--model", "/nonexistent", "--data", "x"})).err,
              HasSubstr("no model in /nonexistent"));
}

}  // namespace
}  // namespace muster::train
