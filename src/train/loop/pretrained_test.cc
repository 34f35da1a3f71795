// model.from: training that starts from a Hugging Face folder, and what it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "train/hf/config_json.h"
#include "train/loop/model_folder.h"
#include "train/loop/test_run.h"
#include "train/loop/write_model.h"

namespace muster::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

ModelConfig pretrained_model() {
  ModelConfig config = preset("tiny").value();
  config.vocab = 66;  // two more than the tokenizer has
  config.max_sequence = 48;
  config.rope_scaling = "linear";
  config.rope_factor = 2;
  config.tied = true;
  return config;
}

void write_weights_of(const Model& model, const std::string& folder) {
  const auto read = [&](const Slice& slice, std::span<float> out) -> Result<void> {
    const Param& param = model.table().at(slice.tensor);
    std::ranges::copy(
        model.parameters().as<float>({param.offset + slice.flat.begin, param.offset + slice.flat.end}),
        out.begin());
    return {};
  };
  EXPECT_TRUE(hf::write_weights(folder, model.table().config(), read,
                                {.number = hf::Number::f32, .file_bytes_max = 20'000}));
}

// A Hugging Face folder with weights that `seed` names.
Model write_pretrained(const std::string& folder, std::uint64_t seed = 77) {
  Model model = Model::create(pretrained_model()).value();
  model.init_parameters(seed);
  const auto config = hf::to_config(model.table().config(), {{"eos_token_id", 7}, {"dtype", "bfloat16"}});
  EXPECT_TRUE(make_directories(folder));
  EXPECT_TRUE(write_file_atomic(folder + "/config.json", json::dump(config)));
  EXPECT_TRUE(write_file_atomic(folder + "/tokenizer.model", kTokenizer));
  EXPECT_TRUE(write_file_atomic(folder + "/generation_config.json", "{}"));
  write_weights_of(model, folder);
  return model;
}

Config config_from(const std::string& folder, const std::vector<std::string>& more = {}) {
  std::vector<Setting> settings;
  std::vector<std::string> texts = {"model.from=" + folder, "train.sequence=16", "train.batch=6",
                                    "train.micro_batch=1",  "train.steps=3",     "optim.lr=0.01"};
  texts.insert(texts.end(), more.begin(), more.end());
  for (const auto& text : texts) settings.push_back(*parse_assignment(text));
  const auto config = resolve(with_pretrained(settings).value());
  EXPECT_TRUE(config) << config.error().message;
  return *config;
}

// The elements that a trainer holds are those of the whole model at the same coordinates.
void expect_parameters_of(const Model& whole, Trainer& trainer) {
  const FlatBuffer& held = trainer.model().parameters();
  const ParamTable& table = trainer.model().table();
  std::int64_t seen = 0;
  for (const Range piece : held.pieces()) {
    for (std::int64_t i = piece.begin; i < piece.end; ++i, ++seen) {
      const Param& param = table.param_at(i);
      const Param& global = whole.table().at(param.name);
      const bool matrix = param.shape.size() == 2;
      const std::int64_t columns = matrix ? param.shape[1] : 1, at = i - param.offset;
      const std::int64_t row = at / columns + param.box.start[0];
      const std::int64_t column = at % columns + (matrix ? param.box.start[1] : 0);
      const auto there =
          static_cast<std::size_t>(global.offset + row * (matrix ? global.shape[1] : 1) + column);
      const double expected = static_cast<double>(whole.parameters().as<float>()[there]);
      const Range here{i, i + 1};
      const double got = held.dtype() == Dtype::f32 ? static_cast<double>(held.as<float>(here)[0])
                                                    : held.as<double>(here)[0];
      ASSERT_EQ(got, expected) << param.name << " " << at;
    }
  }
  EXPECT_EQ(seen, held.numel());
  EXPECT_EQ(trainer.steps_done(), 0);
}

TEST(Pretrained, GivesItsParametersToAnyLayout) {
  const auto data = tokens();
  const TempDir folder;
  const Model whole = write_pretrained(folder / "hf");
  struct Case {
    int ranks;
    std::vector<std::string> keys;
    Dtype dtype;
  };
  std::vector<double> losses;
  for (const Case& layout :
       {Case{1, {}, Dtype::f64}, Case{1, {}, Dtype::f32}, Case{3, {"mesh.zero=1"}, Dtype::f64},
        Case{2, {"mesh.tp=2"}, Dtype::f64}, Case{2, {"mesh.tp=2", "mesh.sequence_parallel=true"}, Dtype::f64},
        Case{2, {"mesh.pp=2"}, Dtype::f64}, Case{3, {"mesh.shard=3"}, Dtype::f64},
        Case{8, {"mesh.pp=2", "mesh.shard=2", "mesh.tp=2"}, Dtype::f64}}) {
    const auto traces = run_ranks(layout.ranks, [&](int) {
      return RunOptions{.config = config_from(folder / "hf", layout.keys),
                        .train = &data,
                        .prepare = [&](Trainer& trainer) { expect_parameters_of(whole, trainer); },
                        .dtype = layout.dtype};
    });
    for (const Trace& trace : traces) ASSERT_EQ(trace.error, "");
    losses.push_back(traces[0].losses.back());
    EXPECT_NEAR(losses.back(), losses.front(), layout.dtype == Dtype::f64 ? 1e-12 : 1e-5);
  }
}

TEST(Pretrained, ConfigurationIsTheFoldersUnlessSaidOtherwise) {
  const TempDir folder;
  write_pretrained(folder / "hf");
  const Config config = config_from(folder / "hf");
  EXPECT_EQ(config.model, pretrained_model());
  EXPECT_EQ(config.sources.at("model.rope_factor"), folder / "hf/config.json");
  EXPECT_EQ(config_from(folder / "hf", {"model.rope_factor=3"}).model.rope_factor, 3);
  EXPECT_THAT(with_pretrained({*parse_assignment("model.from=" + folder / "none")}).error().message,
              HasSubstr("model.from: open " + folder / "none/config.json"));
  const auto both = with_pretrained(
      {*parse_assignment("model.from=" + folder / "hf"), *parse_assignment("model.preset=tiny")});
  EXPECT_THAT(resolve(both.value()).error().message, HasSubstr("model.preset and model.from"));
}

TEST(Pretrained, ACheckpointGoesBeforeIt) {
  const auto data = tokens();
  const TempDir folder;
  write_pretrained(folder / "hf");
  const auto config = [&](const char* name) {
    return config_from(folder / "hf", {"checkpoint.dir=" + folder / name, "checkpoint.every=2"});
  };
  const Trace whole = run_alone({.config = config("whole"), .train = &data, .steps_only = false});
  ASSERT_EQ(whole.error, "");
  const Trace first =
      run_alone({.config = config("parts"), .train = &data, .stop = after(2, true), .steps_only = false});
  EXPECT_EQ(first.outcome, Outcome::stopped);
  ASSERT_TRUE(fs::remove(folder / "hf/model-00001-of-00004.safetensors"));  // no longer needed
  const Trace second = run_alone({.config = config("parts"), .train = &data, .steps_only = false});
  EXPECT_EQ(second.error, "");
  EXPECT_EQ(second.state, whole.state);
}

TEST(Pretrained, WhatDoesNotFitIsRefused) {
  const TempDir folder;
  const auto data = tokens();
  write_pretrained(folder / "a");
  write_pretrained(folder / "b", 78);
  const auto traces = run_ranks(2, [&](int rank) {
    return RunOptions{.config = config_from(rank == 0 ? folder / "a" : folder / "b"), .train = &data};
  });
  EXPECT_THAT(traces[0].error, HasSubstr("the ranks find different weights in model.from = " + folder / "a"));
  EXPECT_THAT(traces[1].error, HasSubstr("different weights"));

  const Trace resized = run_alone({.config = config_from(folder / "a", {"model.ffn=50"}), .train = &data});
  EXPECT_THAT(resized.error, HasSubstr("gate_proj.weight has shape [48, 32], the model's has [50, 32]"));
  const Trace small = run_alone({.config = config_from(folder / "a", {"model.vocab=60"}), .train = &data});
  EXPECT_THAT(small.error, HasSubstr("model.vocab is 60, the data's tokenizer has 64 tokens"));

  ASSERT_TRUE(write_file_atomic(folder / "a/tokenizer.model", "another tokenizer"));
  const Trace foreign = run_alone({.config = config_from(folder / "a"), .train = &data});
  EXPECT_THAT(foreign.error,
              testing::AllOf(HasSubstr("is for tokenizer"), HasSubstr("the data is made with")));
}

TEST(Pretrained, WeightsThatAreNotFiniteAreRefusedByName) {
  const TempDir folder;
  Model model = write_pretrained(folder / "hf");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  for (const auto& [value, what] : {std::pair{std::nanf(""), "NaN"}, std::pair{-INFINITY, "infinite"}}) {
    const Param& param = model.table().at(name);
    model.parameters().as<float>({param.offset + 5, param.offset + 6})[0] = value;
    write_weights_of(model, folder / "hf");
    const std::string says = "tensor " + name + " has a weight that is " + what;
    auto opened = ModelFolder::open(folder / "hf");
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_THAT(opened->load(16).error().message, HasSubstr(folder / "hf: " + says));
    EXPECT_THAT(opened->load(16, Dtype::f64).error().message, HasSubstr(says));
    EXPECT_THAT(export_model(*opened, folder / "out", {}).error().message, HasSubstr(says));
    EXPECT_FALSE(fs::exists(folder / "out"));
    const auto data = tokens();
    for (const Trace& trace : run_ranks(2, [&](int) {
           return RunOptions{.config = config_from(folder / "hf", {"mesh.pp=2"}), .train = &data};
         })) {
      EXPECT_THAT(trace.error, HasSubstr("rank 1: " + says));  // of the second stage
    }
  }
}

TEST(Pretrained, TheTrainedModelIsExportedWithWhatWasBesideIt) {
  const auto data = tokens();
  const TempDir folder;
  write_pretrained(folder / "hf");
  const auto config =
      config_from(folder / "hf", {"output.dir=" + folder / "model", "checkpoint.dir=" + folder / "ckpt"});
  const Trace trace = run_alone({.config = config, .train = &data, .steps_only = false});
  ASSERT_EQ(trace.error, "");
  for (const char* source : {"model", "ckpt"}) {
    auto model = ModelFolder::open(folder / source);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->step(), 3);
    const std::string target = folder / (std::string(source) + "-hf");
    const auto written = export_model(*model, target, {.number = hf::Number::f32});
    ASSERT_TRUE(written) << written.error().message;
    const auto object = json::parse_object(read_file(target + "/config.json").value()).value();
    EXPECT_EQ(json::opt_int(object, "eos_token_id"), 7);
    EXPECT_EQ(json::opt_string(object, "torch_dtype"), "float32");
    EXPECT_FALSE(object.contains("muster") || object.contains("dtype"));
    EXPECT_EQ(read_file(target + "/tokenizer.model").value(), kTokenizer);
    EXPECT_TRUE(fs::exists(target + "/generation_config.json"));
    auto exported = ModelFolder::open(target);
    ASSERT_TRUE(exported) << exported.error().message;
    EXPECT_EQ(exported->model(), pretrained_model());
    EXPECT_EQ(text_of(exported->load(48)->parameters()), text_of(model->load(48)->parameters()));
    EXPECT_EQ(exported->load(20)->table().config().max_sequence, 20);
  }
}

}  // namespace
}  // namespace muster::train
