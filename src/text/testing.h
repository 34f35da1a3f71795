// A small text and a tokenizer trained on it, made once a test program. Any thread: both are made once and
// never change.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "base/rng.h"
#include "text/tokenizer.h"
#include "text/train_tokenizer.h"

namespace muster::text {

inline constexpr int kTestVocab = 400;

// What tokenizers stumble over.
inline const char* const kHardTexts[] = {
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

// About 60 KB of lines of English-looking words.
inline const std::string& test_text() {
  static const std::string text = [] {
    const std::string_view words[] = {"the",   "beginning", "and",   "light", "of",      "was",     "good",
                                      "water", "upon",      "earth", "day",   "evening", "morning", "said",
                                      "let",   "there",     "be",    "1",     "42",      "fox"};
    Rng rng(1);
    std::string out;
    while (out.size() < 60'000) {
      out += words[rng.below(std::size(words))];
      out += rng.below(12) == 0 ? ".\n" : rng.below(40) == 0 ? "  " : " ";
    }
    return out + "\n";
  }();
  return text;
}

inline const Tokenizer& test_tokenizer() {
  static const Tokenizer tokenizer = [] {
    TempDir folder;
    EXPECT_TRUE(write_file_atomic(folder / "text.txt", test_text()));
    auto trained = train_tokenizer({folder / "text.txt"}, {.vocab_size = kTestVocab});
    EXPECT_TRUE(trained) << trained.error().message;
    return *Tokenizer::from_bytes(std::move(trained->model));
  }();
  return tokenizer;
}

}  // namespace muster::text
