// What a kind of tokenizer does; Tokenizer is what both kinds have in common.
//
// Immutable: any thread, each with a WordMemory of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/detail/word_memory.h"
#include "text/tokenizer.h"

namespace muster::text::detail {

class Coder {
 public:
  virtual ~Coder() = default;

  // `text` is valid UTF-8 and not empty.
  virtual void encode(std::string_view text, bool first, Specials specials, WordMemory& words,
                      std::vector<TokenId>& out) const = 0;
  virtual std::size_t cut(std::string_view text) const = 0;

  // The bytes of each id in a text; empty: a special token, or no token.
  std::vector<std::string> bytes;
  TokenId unk = -1, bos = -1, eos = -1;
  bool dummy_prefix = false;  // texts begin with a space that is not theirs
};

Result<std::unique_ptr<Coder>> sentencepiece_coder(const std::string& model);
// `folder`: where the files that tell special tokens may be; empty: nowhere.
Result<std::unique_ptr<Coder>> bpe_coder(std::string_view json, const std::string& folder);

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

// Words of tokenizers that write a space as a mark in front of a word: the end of the first word of `text`,
// around a newline, and in front of a space behind another character.
std::size_t spaced_word(std::string_view text);
// True if spaced_word could cut the piece (given with spaces): it holds a newline beside other characters, or
// a space behind another character.
bool crosses_spaced_words(std::string_view piece);
// The text with U+2581 as spaces, which it is to such tokenizers; `buffer` holds it if it had some.
std::string_view without_marks(std::string_view text, std::string& buffer);
// The last border of such words in a text that may go on: behind a newline, or in front of a space.
std::size_t spaced_word_cut(std::string_view text);

}  // namespace muster::text::detail
