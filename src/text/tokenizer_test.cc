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
  EXPECT_EQ(tokenizer.cut("a\n"), 2u);
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
  ASSERT_TRUE(oracle.LoadFromSerializedProto(tokenizer.file()).ok());
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
  const std::string_view pieces[] = {" ", " ", "  ",       "\n",           "\t", "the", "be",          "gan",
                                     "x", "7", "\xc3\xa9", "\xe6\xbc\xa2", ".",  "and", "\xe2\x96\x81"};
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
  Encoder encoder(tokenizer);
  encoder.append("one line\n", true, parts);
  encoder.append("  two lines\n", false, parts);
  encoder.append("\nthree", false, parts);
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
  EXPECT_EQ(Tokenizer::from_bytes(std::string(test_tokenizer().file()).substr(0, 1000)).error().code,
            ErrorCode::corrupt);
  EXPECT_EQ(Tokenizer::load("/nonexistent/tokenizer.model").error().code, ErrorCode::not_found);
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
