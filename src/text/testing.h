// A small text and a tokenizer trained on it, made once a test program. Any thread: both are made once and
// never change.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "base/rng.h"
#include "text/tokenizer.h"

namespace muster::text {

inline constexpr int kTestVocab = 400;

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
