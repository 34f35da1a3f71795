#include "text/train_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
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
