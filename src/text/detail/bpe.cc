#include "text/detail/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/assert.h"
#include "base/rng.h"

namespace muster::text::detail {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
// Up to this many symbols a scan over all pairs for every merge is faster than a heap.
constexpr std::size_t kShort = 24;

std::uint64_t pair_of(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

// Of two candidates, whether `a` comes later: std::push_heap keeps the greatest in front.
bool comes_later(const Merges::Scratch::Candidate& a, const Merges::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

Merges::Merges(std::size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

std::size_t Merges::slot_of(std::uint64_t pair) const {
  const auto mask = slots_.size() - 1;
  auto at = Rng::mix(pair) & mask;
  while (slots_[at].pair != pair && slots_[at].pair != kFree) at = (at + 1) & mask;
  return at;
}

void Merges::add(TokenId left, TokenId right, Merge merge) {
  MUSTER_ASSERT(left >= 0 && right >= 0);
  slots_[slot_of(pair_of(left, right))] = {pair_of(left, right), merge};
}

const Merges::Merge* Merges::find(TokenId left, TokenId right) const {
  const auto& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kFree ? nullptr : &slot.merge;
}

void Merges::merge(Scratch& scratch) const {
  if (scratch.ids.size() <= kShort) return merge_short(scratch.ids);
  merge_long(scratch);
}

void Merges::merge_short(std::vector<TokenId>& ids) const {
  // merges[i]: of ids[i] and ids[i + 1].
  Merge merges[kShort];
  const auto look_up = [&](std::size_t i) {
    const auto* found = find(ids[i], ids[i + 1]);
    merges[i] = found ? *found : Merge{kNone, -1};
  };
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) look_up(i);
  while (ids.size() > 1) {
    const auto pairs = ids.size() - 1;
    const auto* best = std::min_element(merges, merges + pairs,
                                        [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->result < 0) return;
    const auto at = static_cast<std::size_t>(best - merges);
    ids[at] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    std::copy(merges + at + 1, merges + pairs, merges + at);
    if (at + 1 < ids.size()) look_up(at);
    if (at > 0) look_up(at - 1);
  }
}

void Merges::merge_long(Scratch& scratch) const {
  auto& [ids, symbols, heap] = scratch;
  MUSTER_ASSERT(ids.size() < kNone);
  const auto count = static_cast<std::uint32_t>(ids.size());
  symbols.clear();
  heap.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols.push_back({ids[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  }
  const auto offer = [&](std::uint32_t left) {
    if (left == kNone || symbols[left].next == kNone) return false;
    const auto* found = find(symbols[left].id, symbols[symbols[left].next].id);
    if (found != nullptr) heap.push_back({found->rank, left});
    return found != nullptr;
  };
  for (std::uint32_t i = 0; i < count; ++i) offer(i);
  std::make_heap(heap.begin(), heap.end(), comes_later);
  while (!heap.empty()) {
    const auto top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    heap.pop_back();
    auto& left = symbols[top.at];
    if (left.id < 0 || left.next == kNone) continue;  // joined meanwhile
    auto& right = symbols[left.next];
    const auto* now = find(left.id, right.id);
    if (now == nullptr || now->rank != top.rank) continue;  // one of the two has changed
    left.id = now->result;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = top.at;
    if (offer(top.at)) std::push_heap(heap.begin(), heap.end(), comes_later);
    if (offer(left.previous)) std::push_heap(heap.begin(), heap.end(), comes_later);
  }
  ids.clear();
  for (const auto& symbol : symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

}  // namespace muster::text::detail
