// Letters, numbers and white space of Unicode, and the decoding of UTF-8 known to be valid. Pure: any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace muster::text::detail {

// \p{L}, \p{N}, \s (the property White_Space), and the rest.
enum class CharKind : unsigned char { other, letter, number, space };

CharKind kind_of(char32_t code);

struct Char {
  char32_t code = 0;
  std::size_t length = 0;  // bytes
};

// The character at `at`. Precondition: valid UTF-8, and at < text.size() is where a character begins.
inline Char char_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const auto tail = [&](std::size_t i) { return static_cast<char32_t>(byte(i) & 0x3f); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | tail(1), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

}  // namespace muster::text::detail
