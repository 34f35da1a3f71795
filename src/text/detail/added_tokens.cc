#include "text/detail/added_tokens.h"

#include <algorithm>

#include "text/detail/unicode.h"

namespace muster::text::detail {
namespace {

unsigned char first_byte(const AddedToken& token) { return static_cast<unsigned char>(token.content[0]); }

std::size_t without_spaces_behind(std::string_view text, std::size_t low, std::size_t at) {
  while (at > low) {
    auto last = at - 1;
    while (last > low && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (kind_of(char_at(text, last).code) != CharKind::space) break;
    at = last;
  }
  return at;
}

std::size_t with_spaces_behind(std::string_view text, std::size_t at, std::size_t high) {
  while (at < high) {
    const auto c = char_at(text, at);
    if (kind_of(c.code) != CharKind::space) break;
    at += c.length;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (const auto& token : tokens_) {
    auto& pass = passes_[token.normalized ? 1 : 0];
    pass.tokens.push_back(token);
    pass.any_plain |= !token.special;
    any_plain_ |= !token.special;
  }
  for (auto& pass : passes_) {
    std::stable_sort(pass.tokens.begin(), pass.tokens.end(), [](const AddedToken& a, const AddedToken& b) {
      if (first_byte(a) != first_byte(b)) return first_byte(a) < first_byte(b);
      return a.content.size() > b.content.size();
    });
    std::size_t at = 0;
    for (std::size_t byte = 0; byte <= 256; ++byte) {
      while (at < pass.tokens.size() && first_byte(pass.tokens[at]) < byte) ++at;
      pass.first_with_byte[byte] = static_cast<std::uint32_t>(at);
    }
  }
}

const AddedToken* AddedTokens::Pass::match(std::string_view text, std::size_t at) const {
  const auto byte = static_cast<unsigned char>(text[at]);
  for (auto i = first_with_byte[byte]; i < first_with_byte[byte + 1]; ++i) {
    if (text.compare(at, tokens[i].content.size(), tokens[i].content) == 0) return &tokens[i];
  }
  return nullptr;
}

// A special token that is only text still hides shorter ones inside it: so does `tokenizers`.
void AddedTokens::Pass::split(std::string_view text, Segment segment, Specials specials,
                              std::vector<Segment>& out) const {
  auto begin = segment.begin;  // of the text that is not in `out` yet
  for (auto at = segment.begin; at < segment.end;) {
    const auto* token = match(text.substr(0, segment.end), at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const auto start = at;
    at += token->content.size();
    if (token->special && specials == Specials::as_text) continue;
    const auto low = token->lstrip ? without_spaces_behind(text, begin, start) : start;
    const auto high = token->rstrip ? with_spaces_behind(text, at, segment.end) : at;
    if (low > begin) out.push_back({begin, low, -1});
    out.push_back({low, high, token->id});
    begin = std::max(begin, high);
    at = std::max(at, high);
  }
  if (begin < segment.end) out.push_back({begin, segment.end, -1});
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text, Specials specials) const {
  std::vector<Segment> now = {{0, text.size(), -1}};
  for (const auto& pass : passes_) {
    if (pass.tokens.empty() || (specials == Specials::as_text && !pass.any_plain)) continue;
    std::vector<Segment> next;
    for (const auto& segment : now) {
      if (segment.token >= 0) {
        next.push_back(segment);
      } else {
        pass.split(text, segment, specials, next);
      }
    }
    now = std::move(next);
  }
  return now;
}

}  // namespace muster::text::detail
