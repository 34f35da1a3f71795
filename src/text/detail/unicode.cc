#include "text/detail/unicode.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace muster::text::detail {
namespace {

struct Run {
  std::uint32_t first;
  std::uint32_t last;
  CharKind kind;
};

constexpr auto letter = CharKind::letter;
constexpr auto number = CharKind::number;
constexpr auto space = CharKind::space;
constexpr Run kRuns[] = {
#include "text/detail/unicode_table.inc"
};

// The kinds of the first 65,536 characters, where nearly all of any text lies.
constexpr auto kBasicPlane = [] {
  std::array<CharKind, 0x10000> out{};
  for (const auto& run : kRuns) {
    for (auto code = run.first; code <= run.last && code < out.size(); ++code) out[code] = run.kind;
  }
  return out;
}();

}  // namespace

CharKind kind_of(char32_t code) {
  if (code < kBasicPlane.size()) return kBasicPlane[code];
  const auto* run = std::lower_bound(std::begin(kRuns), std::end(kRuns), code,
                                     [](const Run& a, char32_t b) { return a.last < b; });
  return run != std::end(kRuns) && code >= run->first ? run->kind : CharKind::other;
}

}  // namespace muster::text::detail
