// Pre-tokenizers: how a text is cut into the words that BPE codes one by one.
//
// A closed list of hand-written scanners, each chosen by the exact JSON that names it in a tokenizer.json.
// They do what `tokenizers` does with the regular expressions of GPT-2, Llama 3 and Qwen 2 and with Digits;
// general regular expressions with lookahead are not done (RE2 has none). Pure: any thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace muster::text::detail {

// The length in bytes of the first word of `text`, at least one character. Precondition: text is valid UTF-8
// and not empty. A scanner looks at nothing in front of the text.
using Scanner = std::size_t (*)(std::string_view text);

std::size_t gpt2_word(std::string_view text);
std::size_t llama3_word(std::string_view text);  // numbers by three digits
std::size_t qwen2_word(std::string_view text);   // the same, numbers by one
std::size_t single_digit(std::string_view text);
std::size_t digit_run(std::string_view text);

// What a pre_tokenizer of a tokenizer.json does: each scanner cuts what the one before left.
struct PreTokenizer {
  bool byte_level = false;
  std::vector<Scanner> scanners;
};
// `value`: the member pre_tokenizer, or null. unsupported names what is not on the list, and the list.
Result<PreTokenizer> parse_pre_tokenizer(const json::Value& value);

// True if a text may be cut between a letter or number and the white space behind it: no scanner has a word
// that spans such a place, or looks across it.
//
// It holds for all of the list: letters and numbers end at white space, what precedes a word (one space, one
// character) stands in front of it, and lookahead is only used behind white space. The text may be any bytes.
bool splits_before_space(std::string_view text, std::size_t at);

// Calls use(word) for the words of `text` in order.
template <typename Use>
void for_each_word(const Scanner* scanner, const Scanner* end, std::string_view text, const Use& use) {
  if (scanner == end) return use(text);
  while (!text.empty()) {
    const auto length = (*scanner)(text);
    for_each_word(scanner + 1, end, text.substr(0, length), use);
    text.remove_prefix(length);
  }
}

}  // namespace muster::text::detail
