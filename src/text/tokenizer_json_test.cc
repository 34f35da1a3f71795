#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/shards.h"
#include "text/testing.h"
#include "text/tokenizer.h"

namespace muster::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string utf8_below_0x800(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// Bytes 0 .. 255 as GPT-2 writes them: the alphabet as its ids 0 .. 255, in order of the bytes.
std::string alphabet(unsigned char byte) {
  if ((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad)) return utf8_below_0x800(byte);
  int rank = 0;
  for (int other = 0; other < byte; ++other) {
    if (!((other >= '!' && other <= '~') || (other >= 0xa1 && other != 0xad))) ++rank;
  }
  return utf8_below_0x800(0x100 + rank);
}

// A byte-level tokenizer.json: ids 0 .. 255 are the bytes; then each merge of `merges` makes the next ("Ġ a":
// of a space and an a).
json::Object byte_level(const std::vector<std::string>& merges) {
  json::Object vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[alphabet(static_cast<unsigned char>(byte))] = byte;
  json::Array list;
  for (const auto& merge : merges) {
    auto joined = merge;
    joined.erase(joined.find(' '), 1);
    vocab[joined] = vocab.size();
    list.emplace_back(merge);
  }
  return {{"version", "1.0"},
          {"added_tokens", json::Array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"vocab", vocab},
            {"merges", list}}}};
}

json::Value added(std::string_view content, int id, bool special, bool lstrip = false, bool rstrip = false) {
  return {{"id", id},         {"content", content},  {"single_word", false}, {"lstrip", lstrip},
          {"rstrip", rstrip}, {"normalized", false}, {"special", special}};
}

// Llama 2's form: "<unk>" 0, "<s>" 1, "</s>" 2, the byte tokens 3 .. 258, then what follows.
json::Object spaced(const std::vector<std::string>& symbols, const std::vector<std::string>& merges) {
  json::Object vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    vocab[name] = byte + 3;
  }
  for (const auto& symbol : symbols) vocab[symbol] = vocab.size();
  json::Array list;
  for (const auto& merge : merges) {
    const auto space = merge.find(' ');
    vocab[merge.substr(0, space) + merge.substr(space + 1)] = vocab.size();
    list.emplace_back(json::Array{merge.substr(0, space), merge.substr(space + 1)});
  }
  const json::Value mark = "\xe2\x96\x81";
  return {
      {"added_tokens", json::Array{added("<unk>", 0, true), added("<s>", 1, true), added("</s>", 2, true)}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", mark}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", list}}}};
}

Tokenizer made(const json::Object& object) {
  auto tokenizer = Tokenizer::from_bytes(json::dump(object));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return *std::move(tokenizer);
}

std::string why_refused(const json::Object& object, ErrorCode code = ErrorCode::unsupported) {
  const auto tokenizer = Tokenizer::from_bytes(json::dump(object));
  if (tokenizer) return "it is accepted";
  EXPECT_EQ(tokenizer.error().code, code);
  return tokenizer.error().message;
}

const std::vector<std::string> kMerges = {"t h", "th e", "\xc4\xa0 the", "e r", "\xc4\xa0 a", "1 2"};

TEST(ByteLevel, MergesInsideWordsOnly) {
  const auto tokenizer = made(byte_level(kMerges));
  EXPECT_EQ(tokenizer.vocab_size(), 262);
  EXPECT_THAT(tokenizer.encode("the there"), ElementsAre(257, 258, 'r', 'e'));
  EXPECT_THAT(tokenizer.encode("er a 12"), ElementsAre(259, 260, ' ', 261));
  EXPECT_THAT(tokenizer.encode("t h"), ElementsAre('t', ' ', 'h'));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.bytes(258), " the");
  EXPECT_FALSE(tokenizer.has_dummy_prefix());
  EXPECT_EQ(tokenizer.eos(), -1);
  EXPECT_EQ(tokenizer.hash().size(), 64u);
}

TEST(ByteLevel, EveryByteStandsForItself) {
  const auto tokenizer = made(byte_level(kMerges));
  for (const std::string text : kHardTexts) {
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    std::string bytes;
    for (const auto id : ids) bytes += tokenizer.bytes(id);
    EXPECT_EQ(bytes, text);
  }
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{0xe6, 0xbc}), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xff")), "a\xef\xbf\xbd");
  EXPECT_FALSE(tokenizer.decode(std::vector<TokenId>{262}));
}

TEST(ByteLevel, IgnoreMergesTakesWholeWords) {
  auto object = byte_level({"a b", "c d", "ab cd"});
  object["model"].as_object()["vocab"].as_object()["bcd"] = 259;  // no merge makes it
  EXPECT_THAT(made(object).encode("bcd"), ElementsAre('b', 257));
  object["model"].as_object()["ignore_merges"] = true;
  EXPECT_THAT(made(object).encode("bcd abcd"), ElementsAre(259, ' ', 258));
}

TEST(ByteLevel, Llama3SplitsNumbersByThree) {
  auto object = byte_level({"1 2", "3 4"});
  object["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"},
                                {"pattern", {{"Regex", kLlama3Pattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}},
                               {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_THAT(made(object).encode("1234"), ElementsAre(256, '3', '4'));
}

TEST(AddedTokens, SpecialOnesAreTextUnlessAskedFor) {
  auto object = byte_level(kMerges);
  object["added_tokens"] = {added("<|end|>", 262, true), added("<tool>", 263, false),
                            added("<tool>>", 264, false)};
  const auto tokenizer = made(object);
  EXPECT_EQ(tokenizer.vocab_size(), 265);
  EXPECT_THAT(tokenizer.encode("a<tool>>b<tool>"), ElementsAre('a', 264, 'b', 263));
  EXPECT_EQ(tokenizer.encode("<|end|>").size(), 7u);
  EXPECT_THAT(tokenizer.encode("a<|end|>\n", Specials::as_tokens), ElementsAre('a', 262, '\n'));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{'a', 262, 263}), "a<tool>");
  EXPECT_EQ(tokenizer.bytes(262), "");
  EXPECT_EQ(tokenizer.bytes(263), "<tool>");
}

TEST(AddedTokens, TakeWhiteSpaceAlong) {
  auto object = byte_level({});
  object["added_tokens"] = {added("<l>", 256, false, true, false), added("<r>", 257, false, false, true)};
  const auto tokenizer = made(object);
  EXPECT_THAT(tokenizer.encode("a \xc2\xa0<l> b"), ElementsAre('a', 256, ' ', 'b'));
  EXPECT_THAT(tokenizer.encode("a <r>\n\n b<r> <l>"), ElementsAre('a', ' ', 257, 'b', 257, 256));
}

TEST(Spaced, LlamasForm) {
  const auto tokenizer = made(spaced({"\xe2\x96\x81", "a", "b", "\n"}, {"\xe2\x96\x81 a", "a b"}));
  EXPECT_TRUE(tokenizer.has_dummy_prefix());
  EXPECT_THAT(tokenizer.encode("a ab"), ElementsAre(263, 263, 261));
  EXPECT_THAT(tokenizer.encode(" ab"), ElementsAre(259, 263, 261));
  EXPECT_THAT(tokenizer.encode("c"), ElementsAre(259, 3 + 'c'));
  EXPECT_THAT(tokenizer.encode("<s>a", Specials::as_tokens), ElementsAre(1, 263));
  for (const std::string text : kHardTexts) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.cut("a b\nc"), 4u);
  EXPECT_EQ(tokenizer.cut("a b"), 1u);
}

TEST(Spaced, UnknownCharactersAreFusedIfItSaysSo) {
  auto object = spaced({"\xe2\x96\x81", "a"}, {});
  object["model"].as_object()["byte_fallback"] = false;
  auto& decoders = object["decoder"].as_object()["decoders"].as_array();
  decoders.erase(decoders.begin() + 1);
  EXPECT_THAT(made(object).encode("xyz\n az"), ElementsAre(259, 0, 259, 260, 0));
  object["model"].as_object()["fuse_unk"] = false;
  EXPECT_THAT(made(object).encode("xyz"), ElementsAre(259, 0, 0, 0));
}

TEST(Spaced, PiecesOverSpacesAreCodedAsAWhole) {
  const auto tokenizer = made(spaced({"\xe2\x96\x81", "a", "b"}, {"a \xe2\x96\x81", "a\xe2\x96\x81 b"}));
  EXPECT_THAT(tokenizer.encode("a b"), ElementsAre(259, 263));
  EXPECT_EQ(tokenizer.cut("a b\nc"), 0u);
}

TEST(TokenizerJson, CutsChangeNothing) {
  auto digits = byte_level(kMerges);
  digits["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Digits"}, {"individual_digits", true}},
                               {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  digits["added_tokens"] = {added("  ", 262, false), added("<r>", 263, false, false, true)};
  const Tokenizer tokenizers[] = {
      made(byte_level(kMerges)), made(digits),
      made(spaced({"\xe2\x96\x81", "a", "t", "h"}, {"t h", "\xe2\x96\x81 \xe2\x96\x81"}))};
  const std::string_view pieces[] = {" ", "  ",           "\n",  "the", "a", "12",
                                     ".", "\xe6\xbc\xa2", "<r>", "\t",  "er"};
  Rng rng(3);
  int cuts = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string text;
    for (auto n = 2 + rng.below(20); n > 0; --n) text += pieces[rng.below(std::size(pieces))];
    for (const auto& tokenizer : tokenizers) {
      const auto at = tokenizer.cut(std::string_view(text).substr(0, 1 + rng.below(text.size())));
      std::vector<TokenId> ids;
      Encoder encoder(tokenizer);
      encoder.append(std::string_view(text).substr(0, at), true, ids);
      encoder.append(std::string_view(text).substr(at), at == 0, ids);
      ASSERT_EQ(ids, tokenizer.encode(text)) << text << " cut at " << at;
      cuts += at > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(cuts, 1000);
}

// As in the vocabulary of SmolLM2.
TEST(TokenizerJson, AControlCharacterWithoutATokenIsDropped) {
  auto object = byte_level({});
  object["model"].as_object()["vocab"].as_object().erase("\xc4\x84");  // the byte 4
  const auto tokenizer = made(object);
  EXPECT_EQ(tokenizer.encode("a\x04"
                             "b"),
            tokenizer.encode("ab"));
  EXPECT_EQ(tokenizer.encode("\x04"), std::vector<TokenId>());
}

TEST(TokenizerJson, RefusesByNameWhatItDoesNotDo) {
  const auto with = [](const char* name, const json::Value& value) {
    auto object = byte_level(kMerges);
    object[name] = value;
    return object;
  };
  const auto model = [](const char* name, const json::Value& value) {
    auto object = byte_level(kMerges);
    object["model"].as_object()[name] = value;
    return object;
  };
  EXPECT_THAT(why_refused(with("normalizer", {{"type", "NFC"}})),
              HasSubstr("normalizer NFC is not supported; supported: none"));
  EXPECT_THAT(why_refused(with("pre_tokenizer", {{"type", "Whitespace"}})),
              HasSubstr("pre_tokenizer Whitespace"));
  EXPECT_THAT(why_refused(with("pre_tokenizer", nullptr)), HasSubstr("neither"));
  EXPECT_THAT(why_refused(with("decoder", nullptr)), HasSubstr("decoder null"));
  EXPECT_THAT(why_refused(with("decoder", {{"type", "WordPiece"}})), HasSubstr("WordPiece"));
  EXPECT_THAT(why_refused(with("post_processor", {{"type", "Odd"}})), HasSubstr("post_processor Odd"));
  EXPECT_THAT(why_refused(model("type", "Unigram")), HasSubstr("model Unigram"));
  EXPECT_THAT(why_refused(model("dropout", 0.1)), HasSubstr("dropout"));
  EXPECT_THAT(why_refused(model("end_of_word_suffix", "</w>")), HasSubstr("end_of_word_suffix"));
}

TEST(TokenizerJson, NamesWhatIsBroken) {
  auto object = byte_level(kMerges);
  auto& model = object["model"].as_object();
  model["merges"].as_array().emplace_back("no such");
  EXPECT_THAT(why_refused(object, ErrorCode::corrupt), HasSubstr("merge 6 (\"no such\")"));
  model["merges"].as_array().back() = "three parts here";
  EXPECT_THAT(why_refused(object, ErrorCode::corrupt), HasSubstr("not two tokens"));
  model["merges"].as_array().pop_back();
  model["vocab"].as_object()["again"] = 7;
  EXPECT_THAT(why_refused(object, ErrorCode::corrupt), HasSubstr("same id 7"));
  model["vocab"].as_object().erase("again");
  model["vocab"].as_object().erase("a");
  EXPECT_THAT(why_refused(object, ErrorCode::corrupt), HasSubstr("must be in model.vocab"));
  model["merges"] = json::Array();
  EXPECT_THAT(why_refused(object), HasSubstr("no token for the byte 97"));
  EXPECT_EQ(Tokenizer::from_bytes("{").error().code, ErrorCode::corrupt);
  EXPECT_EQ(Tokenizer::from_bytes("{\"a\": 1}").error().code, ErrorCode::corrupt);
}

TEST(TokenizerJson, SpecialTokensAreFoundBesideIt) {
  TempDir folder;
  auto object = byte_level(kMerges);
  object["added_tokens"] = {added("<|begin|>", 262, true), added("<|end|>", 263, true)};
  const auto path = folder / "tokenizer.json";
  ASSERT_TRUE(write_file_atomic(path, json::dump(object)));
  EXPECT_EQ(Tokenizer::load(path)->eos(), -1);
  ASSERT_TRUE(write_file_atomic(folder / "generation_config.json",
                                R"({"bos_token_id": 1, "eos_token_id": [263, 262]})"));
  EXPECT_EQ(Tokenizer::load(path)->eos(), 263);
  EXPECT_EQ(Tokenizer::load(path)->bos(), 1);
  ASSERT_TRUE(write_file_atomic(folder / "tokenizer_config.json",
                                R"({"bos_token": {"content": "<|begin|>"}, "eos_token": "<|begin|>"})"));
  EXPECT_EQ(Tokenizer::load(path)->bos(), 262);
  EXPECT_EQ(Tokenizer::load(path)->eos(), 262);
  TempDir copy;
  ASSERT_TRUE(copy_tokenizer(path, copy.path()));
  EXPECT_EQ(Tokenizer::load(copy / "tokenizer.json")->eos(), 262);
  ASSERT_TRUE(write_file_atomic(folder / "tokenizer_config.json", R"({"eos_token": "<|gone|>"})"));
  EXPECT_THAT(Tokenizer::load(path).error().message,
              HasSubstr("eos_token \"<|gone|>\" is not in the vocabulary"));
}

TEST(TokenizerJson, ByteLengthsAreThoseOfTheText) {
  auto object = byte_level(kMerges);
  object["added_tokens"] = {added("<|end|>", 262, true)};
  const auto tokenizer = made(object);
  const auto vocabulary = vocabulary_of(tokenizer);
  EXPECT_EQ(vocabulary.dummy_bytes, 0);
  for (const std::string text : kHardTexts) {
    std::size_t bytes = 0;
    for (const auto id : tokenizer.encode(text))
      bytes += vocabulary.byte_lengths[static_cast<std::size_t>(id)];
    EXPECT_EQ(bytes, text.size());
  }
  EXPECT_EQ(vocabulary.byte_lengths[262], 0);
}

TEST(TokenizerJson, ManyThreadsMayEncode) {
  const auto tokenizer = made(byte_level(kMerges));
  const auto expected = tokenizer.encode(test_text());
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Encoder encoder(tokenizer);
      for (int round = 0; round < 3; ++round) {
        std::vector<TokenId> ids;
        encoder.append(test_text(), true, ids);
        EXPECT_EQ(ids, expected);
      }
    });
  }
}

}  // namespace
}  // namespace muster::text
