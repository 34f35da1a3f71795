// Byte pair encoding: merges of neighbouring symbols, the lowest rank first, from the left.
//
// As `tokenizers` does it: of all neighbours that a merge joins, the pair of lowest rank is joined, the
// leftmost of several; until none is left. Cost: n log n for a word of n symbols. Immutable once filled: any
// thread may merge(), each with a scratch of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace muster::text::detail {

class Merges {
 public:
  struct Merge {
    std::uint32_t rank = 0;
    TokenId result = -1;
  };
  // Working memory of merge(), kept between calls so that a word costs no allocation.
  struct Scratch {
    struct Symbol {
      TokenId id;
      std::uint32_t previous;
      std::uint32_t next;
    };
    struct Candidate {
      std::uint32_t rank;
      std::uint32_t at;  // the left symbol of the pair
    };
    std::vector<TokenId> ids;  // in: the symbols of a word; out: its tokens
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  explicit Merges(std::size_t count);

  // Ids are >= 0. A pair that is given twice keeps the later rank. At most `count` calls.
  void add(TokenId left, TokenId right, Merge merge);
  // nullptr: the pair is not joined.
  const Merge* find(TokenId left, TokenId right) const;

  // Joins the symbols in scratch.ids in place. At most 2^32 - 2 of them.
  void merge(Scratch& scratch) const;

 private:
  struct Slot {
    std::uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr std::uint64_t kFree = ~0ULL;

  std::size_t slot_of(std::uint64_t pair) const;
  void merge_short(std::vector<TokenId>& ids) const;
  void merge_long(Scratch& scratch) const;

  std::vector<Slot> slots_;  // open addressing, at most half full
};

}  // namespace muster::text::detail
