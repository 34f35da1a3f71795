#include <algorithm>

#include "text/detail/coder.h"

namespace muster::text::detail {

std::size_t spaced_word(std::string_view text) {
  if (text[0] == '\n') return 1;
  for (std::size_t at = 1; at < text.size(); ++at) {
    if (text[at] == '\n' || (text[at] == ' ' && text[at - 1] != ' ')) return at;
  }
  return text.size();
}

bool crosses_spaced_words(std::string_view piece) {
  for (std::size_t at = 1; at < piece.size(); ++at) {
    if (piece[at] == '\n' || piece[at - 1] == '\n' || (piece[at] == ' ' && piece[at - 1] != ' ')) return true;
  }
  return false;
}

std::size_t spaced_word_cut(std::string_view text) {
  for (auto at = text.size(); at > 0; --at) {
    if (text[at - 1] == '\n') return at;
    const bool space = at < text.size() && text[at] == ' ';
    if (space && text[at - 1] != ' ' && !text.substr(0, at).ends_with(kSpaceMark)) return at;
  }
  return 0;
}

std::string_view without_marks(std::string_view text, std::string& buffer) {
  auto mark = text.find(kSpaceMark);
  if (mark == std::string_view::npos) return text;
  buffer.clear();
  for (; mark != std::string_view::npos; mark = text.find(kSpaceMark)) {
    buffer += text.substr(0, mark);
    buffer += ' ';
    text.remove_prefix(mark + kSpaceMark.size());
  }
  return buffer += text;
}

}  // namespace muster::text::detail
