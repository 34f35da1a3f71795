#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <thread>

#include "base/file.h"
#include "base/rng.h"
#include "text/testing.h"

namespace muster::text {
namespace {

using ::testing::HasSubstr;

const char* const kHardTexts[] = {
    "",
    " ",
    "a",
    "\n",
    "\n\n\n",
    "Hello world",
    "  leading and   inner    runs of spaces  ",
    "tabs\tand\r\nDOS lines\r\n",
    "1234567890 3.14159",
    "na\xc3\xafve caf\xc3\xa9 e\xcc\x81 combining a\xcc\x88\xcc\xa3",  // precomposed and combining
    "\xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80 emoji with joiner",  // 😀👩‍🚀
    "\xe6\xbc\xa2\xe5\xad\x97\xe3\x81\x8b\xe3\x81\xaa \xed\x95\x9c\xea\xb5\xad\xec\x96\xb4",  // 漢字かな
                                                                                              // 한국어
    "\xef\xbb\xbf"
    "a byte order mark and \xef\xbf\xbd a replacement",
    "\xe2\x91\xa0\xef\xac\x81\xef\xbc\xa1\xe3\x80\x80 what a normaliser would change",
    "control \x01\x7f\x1b[0m characters",
    "<unk> <s> </s> <0x41> are only text",
    "the quick brown fox\n  jumps over\n\n    the lazy dog\n",
};

TEST(Tokenizer, RoundTripsHardText) {
  const auto& tokenizer = test_tokenizer();
  for (const std::string text : kHardTexts) {
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  const std::string with_nul("a\0b", 3);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(with_nul)), with_nul);
}

TEST(Tokenizer, LlamaConventions) {
  const auto& tokenizer = test_tokenizer();
  EXPECT_EQ(tokenizer.unk(), 0);
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_EQ(tokenizer.bytes(1), "");
  EXPECT_EQ(tokenizer.bytes(3), std::string_view("\0", 1));  // <0x00> begins the byte tokens
  EXPECT_EQ(tokenizer.bytes(3 + 0xff), "\xff");
  EXPECT_EQ(tokenizer.vocab_size(), kTestVocab);
  EXPECT_EQ(tokenizer.hash().size(), 64u);
  EXPECT_TRUE(tokenizer.has_dummy_prefix());
  EXPECT_TRUE(tokenizer.splits_at_newlines());
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {  // digits stay alone
    const auto bytes = tokenizer.bytes(id);
    if (bytes.size() < 2) continue;
    EXPECT_EQ(bytes.find_first_of("0123456789"), std::string_view::npos) << bytes;
  }
}

// The word-by-word coding must be what SentencePiece gives for the whole text.
TEST(Tokenizer, EqualsSentencePieceOnTheWholeText) {
  const auto& tokenizer = test_tokenizer();
  sentencepiece::SentencePieceProcessor oracle;
  ASSERT_TRUE(oracle.LoadFromSerializedProto(tokenizer.model()).ok());
  const auto check = [&](const std::string& text) {
    std::vector<int> expected;
    ASSERT_TRUE(oracle.Encode(text, &expected).ok());
    const auto ids = tokenizer.encode(text);
    ASSERT_EQ(ids, expected) << text;
    std::string decoded;
    ASSERT_TRUE(oracle.Decode(expected, &decoded).ok());
    ASSERT_EQ(tokenizer.decode(ids), decoded);
  };
  for (const std::string text : kHardTexts) check(text);
  Rng rng(7);
  const std::string_view pieces[] = {" ",   " ", "  ", "\n",       "\t",           "the", "be",
                                     "gan", "x", "7",  "\xc3\xa9", "\xe6\xbc\xa2", ".",   "and"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (auto n = rng.below(40); n > 0; --n) text += pieces[rng.below(std::size(pieces))];
    check(text);
  }
}

TEST(Tokenizer, ContinuingBehindANewlineIsTheWhole) {
  const auto& tokenizer = test_tokenizer();
  const std::string text = "one line\n  two lines\n\nthree";
  std::vector<TokenId> parts;
  tokenizer.encode_append("one line\n", true, parts);
  tokenizer.encode_append("  two lines\n", false, parts);
  tokenizer.encode_append("\nthree", false, parts);
  EXPECT_EQ(parts, tokenizer.encode(text));
}

TEST(Tokenizer, WordWithoutSpaceAboveTheLimitSurvives) {
  const auto& tokenizer = test_tokenizer();
  std::string text(3'000'001, '\xa2');
  for (std::size_t i = 0; i + 2 < text.size(); i += 3) text.replace(i, 3, "\xe6\xbc\xa2");
  text.resize(text.size() / 3 * 3);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST(Tokenizer, InvalidUtf8BecomesReplacement) {
  const auto& tokenizer = test_tokenizer();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xff"
                                              "b")),
            "a\xef\xbf\xbd"
            "b");
  const std::vector<TokenId> half = {3 + 0xe6, 3 + 0xbc};  // a generation that stopped inside a character
  EXPECT_EQ(tokenizer.decode(half)->find('\xe6'), std::string::npos);
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  const auto& tokenizer = test_tokenizer();
  for (const TokenId id : {-1, tokenizer.vocab_size()}) {
    const auto decoded = tokenizer.decode(std::vector<TokenId>{id});
    ASSERT_FALSE(decoded);
    EXPECT_THAT(decoded.error().message, HasSubstr(std::to_string(id)));
  }
}

TEST(Tokenizer, RefusesWhatIsNoModel) {
  EXPECT_EQ(Tokenizer::from_bytes("").error().code, ErrorCode::corrupt);
  EXPECT_EQ(Tokenizer::from_bytes("this is not a model").error().code, ErrorCode::corrupt);
  EXPECT_EQ(Tokenizer::from_bytes(std::string(test_tokenizer().model()).substr(0, 1000)).error().code,
            ErrorCode::corrupt);
  EXPECT_EQ(Tokenizer::load("/nonexistent/tokenizer.model").error().code, ErrorCode::not_found);
}

TEST(TrainTokenizer, SameFilesGiveTheSameBytes) {
  TempDir folder;
  ASSERT_TRUE(write_file_atomic(folder / "a.txt", test_text()));
  const TrainTokenizerOptions options{.vocab_size = kTestVocab};
  const auto once = train_tokenizer({folder / "a.txt"}, options);
  ASSERT_TRUE(once) << once.error().message;
  EXPECT_EQ(once->model, test_tokenizer().model());
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

TEST(Tokenizer, ManyThreadsMayEncode) {
  const auto& tokenizer = test_tokenizer();
  const auto expected = tokenizer.encode(test_text());
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(tokenizer.encode(test_text()), expected); });
  }
}

}  // namespace
}  // namespace muster::text
