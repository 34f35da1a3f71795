// muster-train as its users run it, for the tests: real processes, real shards. One thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/shards.h"
#include "text/tokenizer.h"
#include "text/train_tokenizer.h"
#include "train/agent/test_process.h"

namespace muster::train {

using testing::ContainsRegex;
using testing::HasSubstr;
namespace fs = std::filesystem;

// A text of few words, a tokenizer for it, and two folders of shards.
class Program : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    const std::string file = *folder_ / "text";
    ASSERT_TRUE(write_file_atomic(file, some_text(1, 30'000)));
    const auto trained = text::train_tokenizer({file}, {.vocab_size = 320});
    ASSERT_TRUE(trained) << trained.error().message;
    ASSERT_TRUE(make_directories(*folder_ / "tokenizer"));
    ASSERT_TRUE(write_file_atomic(*folder_ / "tokenizer/tokenizer.model", trained->model));
    write_shard("train", some_text(2, 60'000));
    write_shard("held-out", some_text(3, 8'000));
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string some_text(std::uint64_t seed, std::size_t bytes) {
    static constexpr const char* kWords[] = {"the ",   "cat ",     "and ",   "dog ",    "ran ", "to ",
                                             "a ",     "house.\n", "river ", "slowly ", "of ",  "light ",
                                             "stone ", "sea.\n",   "wind ",  "over "};
    Rng rng(seed);
    std::string out;
    while (out.size() < bytes) out += kWords[rng.below(16)];
    return out;
  }

  static void write_shard(const std::string& name, const std::string& content) {
    const auto tokenizer = text::Tokenizer::load(*folder_ / "tokenizer/tokenizer.model");
    ASSERT_TRUE(tokenizer);
    ASSERT_TRUE(make_directories(*folder_ / name));
    auto writer = text::ShardWriter::create(*folder_ / name + "/a.mts", text::vocabulary_of(*tokenizer));
    ASSERT_TRUE(writer) << writer.error().message;
    writer->begin_document();
    auto ids = tokenizer->encode(content);
    ids.push_back(tokenizer->eos());
    ASSERT_TRUE(writer->append(ids));
    writer->add_source_bytes(content.size());
    ASSERT_TRUE(writer->finish());
  }

  static std::string shared(std::string_view name) { return *folder_ / name; }
  inline static TempDir* folder_ = nullptr;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

inline Child start(const std::vector<std::string>& arguments, const Environment& variables = {}) {
  std::vector<std::string> argv = {MUSTER_TRAIN_PROGRAM};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return start_program(argv, variables);
}

inline std::vector<std::string> train_arguments(const std::string& train,
                                                const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--set", "model.preset=tiny",   "--set",      "train.sequence=16",
                                        "--set", "train.batch=4",       "--set",      "train.micro_batch=2",
                                        "--set", "optim.lr=0.01",       "--set",      "run.threads=1",
                                        "--set", "data.train=" + train, "--job-root", "/nonexistent"};
  arguments.insert(arguments.begin(), "train");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline std::vector<std::string> sets(std::initializer_list<std::string> assignments) {
  std::vector<std::string> out;
  for (const auto& assignment : assignments) {
    out.push_back("--set");
    out.push_back(assignment);
  }
  return out;
}

inline std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The checksums of everything in a step: equal if and only if the tensors are.
inline std::string checksums(const std::string& step) {
  const auto text = read_file(step + "/manifest.json");
  EXPECT_TRUE(text) << step;
  if (!text) return "";
  const auto outer = json::parse_object(*text);
  return json::dump(outer->at("manifest").at("files")) + json::dump(outer->at("manifest").at("samples"));
}

}  // namespace muster::train
