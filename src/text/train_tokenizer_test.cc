#include "text/train_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "text/testing.h"

namespace muster::text {
namespace {

using ::testing::HasSubstr;

TEST(TrainTokenizer, SameFilesGiveTheSameBytes) {
  TempDir folder;
  ASSERT_TRUE(write_file_atomic(folder / "a.txt", test_text()));
  const TrainTokenizerOptions options{.vocab_size = kTestVocab};
  const auto once = train_tokenizer({folder / "a.txt"}, options);
  ASSERT_TRUE(once) << once.error().message;
  EXPECT_EQ(once->model, test_tokenizer().file());
  EXPECT_EQ(once->bytes, test_text().size());
}

TEST(TrainTokenizer, JsonLinesGiveTheTokenizerOfTheirText) {
  TempDir folder;
  const auto half = test_text().find('\n', 30'000) + 1;
  const std::string documents[] = {test_text().substr(0, half - 1),
                                   test_text().substr(half, test_text().size() - half - 1)};
  std::string lines;
  for (const auto& document : documents) lines += json::dump(json::Object{{"body", document}}) + "\n";
  ASSERT_TRUE(write_file_atomic(folder / "a.jsonl", lines));
  const TrainTokenizerOptions options{.vocab_size = kTestVocab, .text_field = "body"};
  const auto trained = train_tokenizer({folder / "a.jsonl"}, options);
  ASSERT_TRUE(trained) << trained.error().message;
  EXPECT_EQ(trained->model, test_tokenizer().file());
  ASSERT_TRUE(write_file_atomic(folder / "a.jsonl", lines + "{}\n"));
  EXPECT_THAT(train_tokenizer({folder / "a.jsonl"}, options).error().message,
              HasSubstr("a.jsonl line 3: it has no field \"body\""));
  const auto skipped = train_tokenizer(
      {folder / "a.jsonl"}, {.vocab_size = kTestVocab, .text_field = "body", .skip_bad_lines = true});
  ASSERT_TRUE(skipped) << skipped.error().message;
  EXPECT_EQ(skipped->bad_lines, 1u);
  EXPECT_EQ(skipped->model, trained->model);
}

TEST(TrainTokenizer, SamplesEvenlyAboveTheLimit) {
  TempDir folder;
  ASSERT_TRUE(write_file_atomic(folder / "a.txt", test_text()));
  const auto half =
      train_tokenizer({folder / "a.txt"}, {.vocab_size = 320, .sample_bytes_max = test_text().size() / 2});
  ASSERT_TRUE(half) << half.error().message;
  EXPECT_NEAR(static_cast<double>(half->bytes_sampled), static_cast<double>(test_text().size()) / 2,
              static_cast<double>(test_text().size()) / 20);
}

TEST(TrainTokenizer, ErrorsNameWhatIsWrong) {
  TempDir folder;
  ASSERT_TRUE(write_file_atomic(folder / "empty.txt", ""));
  ASSERT_TRUE(write_file_atomic(folder / "newlines.txt", "\n\n\n"));
  ASSERT_TRUE(write_file_atomic(folder / "short.txt", "a few words\n"));
  const auto error = [&](const char* file, int vocab_size) {
    return train_tokenizer({folder / file}, {.vocab_size = vocab_size}).error();
  };
  EXPECT_EQ(error("empty.txt", 400).code, ErrorCode::failed_precondition);
  EXPECT_EQ(error("newlines.txt", 400).code, ErrorCode::failed_precondition);
  EXPECT_EQ(error("missing.txt", 400).code, ErrorCode::not_found);
  EXPECT_THAT(error("short.txt", 12).message, HasSubstr("300"));
  EXPECT_EQ(error("short.txt", 5000).code, ErrorCode::invalid_argument);
  EXPECT_THAT(error("short.txt", 5000).message, HasSubstr("5000"));
}

TEST(TrainTokenizer, LongLinesAndWrongBytesAreUsed) {
  TempDir folder;
  std::string text;
  while (text.size() < 300'000) text += "one very long line of many words ";
  text += "\nwrong \xff\xfe bytes\n";
  ASSERT_TRUE(write_file_atomic(folder / "long.txt", text));
  const auto trained = train_tokenizer({folder / "long.txt"}, {.vocab_size = 300});
  ASSERT_TRUE(trained) << trained.error().message;
  EXPECT_EQ(trained->lines_repaired, 1u);
  EXPECT_GT(trained->lines, 4u);
  EXPECT_GE(trained->bytes_sampled, 300'000u);
}

}  // namespace
}  // namespace muster::text
