#include "text/detail/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/detail/unicode.h"

namespace muster::text::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> words(std::vector<Scanner> scanners, std::string_view text) {
  std::vector<std::string> out;
  for_each_word(scanners.data(), scanners.data() + scanners.size(), text,
                [&](std::string_view word) { out.emplace_back(word); });
  return out;
}

TEST(Unicode, KindsAreThoseOfTheStandard) {
  EXPECT_EQ(kind_of('a'), CharKind::letter);
  EXPECT_EQ(kind_of(0xaa), CharKind::letter);
  EXPECT_EQ(kind_of(0x6f22), CharKind::letter);  // 漢
  EXPECT_EQ(kind_of(0x0301), CharKind::other);   // combining acute
  EXPECT_EQ(kind_of(0x00bd), CharKind::number);  // ½
  EXPECT_EQ(kind_of(0x0663), CharKind::number);  // Arabic three
  EXPECT_EQ(kind_of(0x2028), CharKind::space);
  EXPECT_EQ(kind_of(0x200d), CharKind::other);  // zero-width joiner
  EXPECT_EQ(kind_of(0x1f600), CharKind::other);
  EXPECT_EQ(kind_of(0x20000), CharKind::letter);  // beyond the basic plane
  EXPECT_EQ(kind_of(0x1d7d8), CharKind::number);
  EXPECT_EQ(kind_of(0x10ffff), CharKind::other);
}

TEST(Words, Gpt2) {
  EXPECT_THAT(words({gpt2_word}, "Hello world's  end"), ElementsAre("Hello", " world", "'s", " ", " end"));
  EXPECT_THAT(words({gpt2_word}, "it'LL 'S"), ElementsAre("it", "'", "LL", " '", "S"));
  EXPECT_THAT(words({gpt2_word}, " \n\nx\t y  "), ElementsAre(" \n", "\n", "x", "\t", " y", "  "));
  EXPECT_THAT(words({gpt2_word}, "a1234.5, $6"), ElementsAre("a", "1234", ".", "5", ",", " $", "6"));
  EXPECT_THAT(words({gpt2_word}, " "), ElementsAre(" "));
}

TEST(Words, Llama3AndQwen2) {
  EXPECT_THAT(words({llama3_word}, "it'LL x'\xc5\xbf"), ElementsAre("it", "'LL", " x", "'\xc5\xbf"));
  EXPECT_THAT(words({llama3_word}, "12345 (a) $b"), ElementsAre("123", "45", " (", "a", ")", " $", "b"));
  EXPECT_THAT(words({llama3_word}, "(a\tb"), ElementsAre("(a", "\tb"));
  EXPECT_THAT(words({llama3_word}, "x;\r\n\r\n  y"), ElementsAre("x", ";\r\n\r\n", " ", " y"));
  EXPECT_THAT(words({llama3_word}, "x \n \n  y"), ElementsAre("x", " \n \n", " ", " y"));
  EXPECT_THAT(words({qwen2_word}, "12 3"), ElementsAre("1", "2", " ", "3"));
}

TEST(Words, DigitsThenGpt2) {
  EXPECT_THAT(words({single_digit}, "ab12 c"), ElementsAre("ab", "1", "2", " c"));
  EXPECT_THAT(words({digit_run}, "ab12 c"), ElementsAre("ab", "12", " c"));
  EXPECT_THAT(words({single_digit, gpt2_word}, "a  12"), ElementsAre("a", "  ", "1", "2"));
}

TEST(Words, AClosedListChosenByTheExactPattern) {
  const auto parse = [](std::string_view text) { return parse_pre_tokenizer(*json::parse(text)); };
  EXPECT_TRUE(parse("null")->scanners.empty());
  const auto gpt2 = parse(R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true})");
  ASSERT_TRUE(gpt2) << gpt2.error().message;
  EXPECT_THAT(gpt2->scanners, ElementsAre(gpt2_word));
  const auto smol = parse(R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
      {"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]})");
  ASSERT_TRUE(smol) << smol.error().message;
  EXPECT_THAT(smol->scanners, ElementsAre(single_digit, gpt2_word));
  for (const auto& [text, named] :
       {std::pair{R"({"type":"Whitespace"})", "Whitespace"},
        {R"({"type":"ByteLevel","add_prefix_space":true})", "add_prefix_space"},
        {R"({"type":"Digits","individual_digits":true})", "without ByteLevel"},
        {R"({"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated","invert":false})", "\\w+"},
        {R"({"type":"Split","pattern":{"String":" "},"behavior":"Isolated","invert":false})", "by a string"},
        {R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false},
               {"type":"Digits"}]})",
         "Digits behind ByteLevel"}}) {
    const auto refused = parse(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_THAT(refused.error().message, HasSubstr(named));
    EXPECT_THAT(refused.error().message, HasSubstr("supported: ByteLevel"));
  }
}

// Cut where splits_before_space says, the words stay what they were.
TEST(Words, CutsBeforeSpacesChangeNothing) {
  const std::string_view pieces[] = {" ",        "  ",       "\n",      "\r\n", "\t", "a",  "Zeit",
                                     "7",        "123",      "'s",      "'",    ".",  "?!", "\xe6\xbc\xa2",
                                     "\xc2\xa0", "\xcc\x81", "\xd9\xa3"};
  Rng rng(5);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (auto n = 2 + rng.below(20); n > 0; --n) text += pieces[rng.below(std::size(pieces))];
    for (const auto& scanners : std::vector<std::vector<Scanner>>{
             {gpt2_word}, {llama3_word}, {qwen2_word}, {single_digit, gpt2_word}, {digit_run, llama3_word}}) {
      const auto whole = words(scanners, text);
      for (std::size_t at = 0; at <= text.size(); ++at) {
        if (!splits_before_space(text, at)) continue;
        auto parts = words(scanners, std::string_view(text).substr(0, at));
        for (auto& word : words(scanners, std::string_view(text).substr(at))) parts.push_back(word);
        ASSERT_EQ(parts, whole) << text << " cut at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace muster::text::detail
