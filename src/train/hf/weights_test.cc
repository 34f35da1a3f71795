// Folders as Hugging Face lays them out: written by write_weights(), read by slices.
#include "train/hf/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/rng.h"
#include "train/hf/config_json.h"
#include "train/hf/export.h"

namespace muster::train::hf {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

ModelConfig small_model(bool tied = false) {
  ModelConfig config = preset("tiny").value();
  config.tied = tied;
  return config;
}

// A model in memory.
struct Memory {
  ModelConfig config;
  ParamTable table{config};
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(table.numel()));

  explicit Memory(const ModelConfig& model, std::uint64_t seed = 1) : config(model) {
    Rng rng(seed);
    for (float& value : values) value = static_cast<float>(rng.uniform() - 0.5);
  }
  std::span<float> of(const Param& param) {
    return std::span(values).subspan(static_cast<std::size_t>(param.offset),
                                     static_cast<std::size_t>(param.numel));
  }
  Result<void> read(const Slice& slice, std::span<float> out) {
    const Param& param = table.at(slice.tensor);
    for (const Run& run : intersect(whole_slice(param.name, param.box), slice)) {
      std::copy_n(of(param).begin() + run.a, run.count, out.begin() + run.b);
    }
    return {};
  }
  Result<Written> write(const std::string& folder, const WriteOptions& options) {
    MUSTER_CHECK(make_directories(folder));
    MUSTER_CHECK(write_file_atomic(folder + "/config.json", json::dump(to_config(config))));
    return write_weights(
        folder, config, [&](const Slice& s, std::span<float> out) { return read(s, out); }, options);
  }
};

// Everything in a folder of weights, as the model lays it out.
std::vector<float> all_of(const Weights& weights, const ModelConfig& config) {
  const ParamTable table(config);
  std::vector<float> values(static_cast<std::size_t>(table.numel()));
  for (const Param& param : table.params()) {
    weights.read(whole_slice(param.name, param.box),
                 std::span(values).subspan(static_cast<std::size_t>(param.offset),
                                           static_cast<std::size_t>(param.numel)));
  }
  return values;
}

TEST(Weights, Fp32ComesBackBitForBitFromOneFileAndFromMany) {
  for (const std::uint64_t file_bytes : {std::uint64_t{1} << 30, std::uint64_t{20'000}, std::uint64_t{1}}) {
    for (const bool tied : {false, true}) {
      const TempDir folder;
      Memory model(small_model(tied));
      const auto written = model.write(folder / "m", {.number = Number::f32, .file_bytes_max = file_bytes});
      ASSERT_TRUE(written) << written.error().message;
      EXPECT_EQ(written->bytes, model.values.size() * 4);
      EXPECT_EQ(written->files, file_bytes == 1        ? static_cast<int>(model.table.params().size())
                                : file_bytes == 20'000 ? (tied ? 4 : 5)
                                                       : 1);
      EXPECT_EQ(fs::exists(folder / "m/model.safetensors.index.json"), written->files > 1);
      const auto weights = Weights::open(folder / "m");
      ASSERT_TRUE(weights) << weights.error().message;
      EXPECT_EQ(read_config(folder / "m").value(), model.config);
      ASSERT_TRUE(weights->check(model.config));
      EXPECT_EQ(all_of(*weights, model.config), model.values);
    }
  }
}

TEST(Weights, HalfFilesComeBackByteForByte) {
  for (const Number number : {Number::f16, Number::bf16}) {
    const TempDir folder;
    Memory model(small_model());
    ASSERT_TRUE(model.write(folder / "first", {.number = number}));
    const auto weights = Weights::open(folder / "first");
    model.values = all_of(weights.value(), model.config);
    ASSERT_TRUE(model.write(folder / "second", {.number = number}));
    EXPECT_EQ(read_file(folder / "first/model.safetensors").value(),
              read_file(folder / "second/model.safetensors").value());
    EXPECT_EQ(weights->find("model.norm.weight")->number, number);
  }
}

// Whatever part of a tensor a rank holds: the same values as from the whole.
TEST(Weights, ASliceIsThatPartOfTheTensor) {
  const TempDir folder;
  Memory model(small_model());
  ASSERT_TRUE(model.write(folder / "m", {.number = Number::f32, .file_bytes_max = 20'000}));
  const auto weights = Weights::open(folder / "m").value();
  Rng rng(5);
  for (int i = 0; i < 500; ++i) {
    const Param& param = model.table.params()[rng.below(model.table.params().size())];
    Slice slice{param.name, param.box, {}};
    for (std::size_t axis = 0; axis < slice.box.start.size(); ++axis) {
      slice.box.start[axis] = rng.between(0, param.shape[axis]);
      slice.box.length[axis] = rng.between(0, param.shape[axis] - slice.box.start[axis]);
    }
    slice.flat.begin = rng.between(0, slice.box.numel());
    slice.flat.end = rng.between(slice.flat.begin, slice.box.numel());
    std::vector<float> got(static_cast<std::size_t>(slice.numel())), expected = got;
    weights.read(slice, got);
    ASSERT_TRUE(model.read(slice, expected));
    ASSERT_EQ(got, expected) << i;
  }
}

TEST(Weights, OfAnotherModelAreRefused) {
  const TempDir folder;
  Memory model(small_model());
  ASSERT_TRUE(model.write(folder / "m", {}));
  const auto weights = Weights::open(folder / "m").value();
  ModelConfig other = model.config;
  other.ffn = 49;
  EXPECT_THAT(
      weights.check(other).error().message,
      HasSubstr("tensor model.layers.0.mlp.gate_proj.weight has shape [48, 32], the model's has [49, 32]"));
  other = model.config;
  other.layers = 3;
  EXPECT_THAT(weights.check(other).error().message,
              HasSubstr("has no tensor model.layers.2.self_attn.q_proj.weight"));
  other.layers = 1;
  EXPECT_THAT(weights.check(other).error().message, HasSubstr("the model has no tensor model.layers.1."));
  other = model.config;
  other.tied = true;
  EXPECT_TRUE(weights.check(other)) << "a tied head may be stored all the same";
}

void rewrite_index(const std::string& folder, const std::string& tensor, const std::string& file) {
  auto index = json::parse_object(read_file(folder + "/" + kIndexName).value()).value();
  index["weight_map"].as_object()[tensor] = file;
  ASSERT_TRUE(write_file_atomic(folder + "/" + kIndexName, json::dump(index)));
}

TEST(Weights, BrokenFoldersAreNamed) {
  const TempDir folder;
  Memory model(small_model());
  EXPECT_THAT(Weights::open(folder.path()).error().message, HasSubstr("has no model.safetensors and no"));
  ASSERT_TRUE(write_file_atomic(folder / "pytorch_model.bin", ""));
  EXPECT_THAT(Weights::open(folder.path()).error().message, HasSubstr("save the model as safetensors"));

  const auto fresh = [&](const char* name) {
    EXPECT_TRUE(model.write(folder / name, {.number = Number::f32, .file_bytes_max = 20'000}));
    return folder / name;
  };
  const std::string missing = fresh("missing");
  fs::remove(missing + "/model-00002-of-00005.safetensors");
  EXPECT_THAT(Weights::open(missing).error().message,
              HasSubstr("model-00002-of-00005.safetensors is missing"));

  const std::string cut = fresh("cut");
  fs::resize_file(cut + "/model-00003-of-00005.safetensors", 1000);
  EXPECT_THAT(Weights::open(cut).error().message, HasSubstr("model-00003-of-00005.safetensors: "));

  const std::string elsewhere = fresh("elsewhere");
  rewrite_index(elsewhere, "model.norm.weight", "model-00001-of-00005.safetensors");
  EXPECT_THAT(Weights::open(elsewhere).error().message, HasSubstr("has no tensor model.norm.weight"));

  const std::string outside = fresh("outside");
  rewrite_index(outside, "model.norm.weight", "../missing/model-00001-of-00005.safetensors");
  EXPECT_EQ(Weights::open(outside).error().code, ErrorCode::corrupt);

  const std::string twice = fresh("twice");
  fs::copy_file(twice + "/model-00001-of-00005.safetensors", twice + "/again.safetensors");
  rewrite_index(twice, "x", "again.safetensors");
  EXPECT_THAT(Weights::open(twice).error().message, HasSubstr("and again in"));
}

TEST(Weights, FingerprintsTellFoldersApart) {
  const TempDir folder;
  Memory model(small_model()), other(small_model(), 2);
  ASSERT_TRUE(model.write(folder / "a", {}) && model.write(folder / "b", {}) &&
              other.write(folder / "c", {}));
  const auto print = [&](const char* name) { return Weights::open(folder / name)->fingerprint(); };
  EXPECT_EQ(print("a"), print("b"));
  EXPECT_NE(print("a"), print("c"));
}

TEST(Export, ANumberThatBecomesInfiniteIsRefused) {
  const TempDir folder;
  Memory model(small_model());
  model.of(model.table.at("model.norm.weight"))[3] = 70000;
  EXPECT_TRUE(model.write(folder / "bf16", {.number = Number::bf16}));
  EXPECT_THAT(model.write(folder / "fp16", {.number = Number::f16}).error().message,
              testing::AllOf(HasSubstr("tensor model.norm.weight has the value 70000.0"),
                             HasSubstr("float16"), HasSubstr("--dtype")));
  EXPECT_FALSE(fs::exists(folder / "fp16/model.safetensors"));
}

TEST(Export, FoldersAreWholeOrAbsent) {
  const TempDir folder;
  const std::string target = folder / "out";
  const auto failing = [&](const std::string& work) -> Result<void> {
    EXPECT_TRUE(write_file_atomic(work + "/x", ""));
    return fail(ErrorCode::io, "disk full");
  };
  EXPECT_EQ(make_folder_atomic(target, failing).error().message, "disk full");
  EXPECT_TRUE(fs::is_empty(folder.path()));
  const auto filling = [](const std::string& work) { return write_file_atomic(work + "/x", ""); };
  ASSERT_TRUE(make_directories(target));
  EXPECT_TRUE(make_folder_atomic(target + "/", filling)) << "an empty one may be there";
  EXPECT_TRUE(fs::exists(target + "/x"));
  EXPECT_THAT(make_folder_atomic(target, filling).error().message, HasSubstr("is there already"));
  std::filesystem::create_directory_symlink(folder / "nowhere", folder / "dangling");
  EXPECT_THAT(make_folder_atomic(folder / "dangling", filling).error().message,
              HasSubstr("is there already"));
  ASSERT_TRUE(make_directories(folder / "real"));
  std::filesystem::create_directory_symlink(folder / "real", folder / "link");
  EXPECT_TRUE(make_folder_atomic(folder / "link", filling));
  EXPECT_FALSE(std::filesystem::is_empty(folder / "real"));
}

TEST(Export, CompanionsAreCopied) {
  const TempDir from, to;
  ASSERT_TRUE(write_file_atomic(from / "tokenizer.json", "{}") && write_file_atomic(from / "README.md", "x"));
  EXPECT_EQ(copy_companions(from.path(), to.path()).value(), 1);
  EXPECT_EQ(read_file(to / "tokenizer.json").value(), "{}");
}

}  // namespace
}  // namespace muster::train::hf
