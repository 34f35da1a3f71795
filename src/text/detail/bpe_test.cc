#include "text/detail/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace muster::text::detail {
namespace {

using Table = std::map<std::pair<TokenId, TokenId>, Merges::Merge>;

// As the definition says, without thought for cost.
std::vector<TokenId> naive(const Table& table, std::vector<TokenId> ids) {
  for (;;) {
    auto best = table.end();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = table.find({ids[i], ids[i + 1]});
      if (it != table.end() && (best == table.end() || it->second.rank < best->second.rank)) {
        best = it;
        at = i;
      }
    }
    if (best == table.end()) return ids;
    ids[at] = best->second.result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

Merges merges_of(const Table& table) {
  Merges out(table.size());
  for (const auto& [pair, merge] : table) out.add(pair.first, pair.second, merge);
  return out;
}

TEST(Merges, EqualTheDefinitionOnShortAndLongWords) {
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    // Every token comes of one pair, as in a tokenizer.json: its text tells its parts.
    Table table;
    TokenId next = 3;
    while (next < 40) {
      const auto pair = std::pair{static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(next))),
                                  static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(next)))};
      if (table.emplace(pair, Merges::Merge{static_cast<std::uint32_t>(rng.below(1000)), next}).second)
        ++next;
    }
    const auto merges = merges_of(table);
    Merges::Scratch scratch;
    for (const std::size_t size : {0u, 1u, 2u, 5u, 24u, 25u, 80u, 300u}) {
      std::vector<TokenId> ids(size);
      for (auto& id : ids) id = static_cast<TokenId>(rng.below(3));
      scratch.ids = ids;
      merges.merge(scratch);
      ASSERT_EQ(scratch.ids, naive(table, ids)) << "round " << round << ", " << size << " symbols";
    }
  }
}

// A run of one symbol: 2^20 of them become one by twenty merges of doubled runs. Quadratic cost would take
// hours.
TEST(Merges, AVeryLongWordIsNearLinear) {
  Table table;
  for (TokenId i = 0; i < 20; ++i) table[{i, i}] = {static_cast<std::uint32_t>(i), i + 1};
  Merges::Scratch scratch;
  scratch.ids.assign(1u << 20, 0);
  merges_of(table).merge(scratch);
  EXPECT_EQ(scratch.ids, std::vector<TokenId>{20});
}

TEST(Merges, APairGivenTwiceKeepsTheLaterRank) {
  Merges merges(3);
  merges.add(0, 1, {0, 3});
  merges.add(1, 2, {1, 4});
  merges.add(0, 1, {2, 3});
  Merges::Scratch scratch;
  scratch.ids = {0, 1, 2};
  merges.merge(scratch);
  EXPECT_EQ(scratch.ids, (std::vector<TokenId>{0, 4}));
}

}  // namespace
}  // namespace muster::text::detail
