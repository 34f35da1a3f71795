#include "train/shard/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace muster::train {
namespace {

ParamTable stage_table(bool tied, Range layers = {0, 2}, std::int64_t vocab = 600) {
  ModelConfig config = *preset("tiny", vocab);
  config.tied = tied;
  config = *validated(config);
  ModelPart part = whole_model(config);
  part.layers = layers;
  return ParamTable(config, part);
}

TEST(Cut, IsAtBlocksWithoutGapsAndAboutEven) {
  const ParamTable table = stage_table(false);
  for (const Range range : {Range{0, table.numel()}, table.units()[1]}) {
    for (const int parts : {1, 2, 3, 7, 64}) {
      const auto cuts = cut_at_blocks(table, range, parts);
      ASSERT_EQ(cuts.size(), static_cast<std::size_t>(parts));
      std::int64_t end = range.begin;
      for (const Range& cut : cuts) {
        EXPECT_EQ(cut.begin, end);
        end = cut.end;
        EXPECT_LE(cut.size(), range.size() / parts + ParamTable::kBlock);
        EXPECT_TRUE(
            end == table.numel() ||
            std::ranges::any_of(table.blocks(), [&](const Range& block) { return block.begin == end; }))
            << end;
      }
      EXPECT_EQ(end, range.end);
    }
  }
}

// Each element of the layout, how often it is in `pieces`.
void count(const std::vector<Range>& pieces, std::vector<int>& times) {
  std::int64_t end = 0;
  for (const Range& piece : pieces) {
    EXPECT_GE(piece.begin, end);
    EXPECT_GT(piece.size(), 0);
    end = piece.end;
    for (auto i = piece.begin; i < piece.end; ++i) ++times[static_cast<std::size_t>(i)];
  }
}

TEST(Placement, EveryElementIsHeldOnceAShardGroupAndWrittenOnceInAll) {
  for (const bool tied : {false, true}) {
    for (const bool zero : {false, true}) {
      const ParamTable table = stage_table(tied);
      const int shards = 3, replicas = 2;
      const auto numel = static_cast<std::size_t>(table.gradient_numel());
      std::vector<int> held(numel), gradients(numel), owned(numel), written(numel);
      for (int shard = 0; shard < shards; ++shard) {
        for (int replica = 0; replica < replicas; ++replica) {
          const Placement p(table, {shards, shard, replicas, replica, zero});
          count(p.held(), held);
          count(p.gradients(), gradients);
          count(p.owned(), owned);
          count(p.written(), written);
          EXPECT_EQ(p.tied().empty(), p.owned().empty() || p.owned().front().begin >= table.units()[0].end);
        }
      }
      for (std::size_t i = 0; i < numel; ++i) {
        const bool parameter = i < static_cast<std::size_t>(table.numel());
        ASSERT_EQ(held[i], parameter ? replicas : 0) << i;
        ASSERT_EQ(gradients[i], replicas) << i;
        ASSERT_EQ(owned[i], !parameter ? 0 : zero ? 1 : replicas) << i;
        ASSERT_EQ(written[i], parameter ? 1 : 0) << i;
      }
    }
  }
}

TEST(Placement, WithoutShardsEverythingIsOnePiece) {
  const ParamTable table = stage_table(true);
  const Placement place(table, {});
  EXPECT_EQ(place.held(), (std::vector<Range>{{0, table.numel()}}));
  EXPECT_EQ(place.gradients(), (std::vector<Range>{{0, table.gradient_numel()}}));
  EXPECT_EQ(place.owned(), place.held());
}

// The copy of a tied embedding on the last stage is cut as the embedding is on the first; the last stage
// neither updates nor writes it.
TEST(Placement, ATiedEmbeddingIsCutAlikeOnBothStages) {
  const ParamTable first = stage_table(true, {0, 1}), last = stage_table(true, {1, 2});
  const std::int64_t copy = last.units().back().begin;
  ASSERT_TRUE(last.params().back().copy);
  for (int shard = 0; shard < 2; ++shard) {
    for (int replica = 0; replica < 3; ++replica) {
      const ShardPlace at{2, shard, 3, replica, true};
      const Placement a(first, at), b(last, at);
      ASSERT_EQ(a.tied().size(), b.tied().size());
      for (std::size_t i = 0; i < a.tied().size(); ++i) {
        EXPECT_EQ(a.tied()[i].begin, b.tied()[i].begin - copy);
        EXPECT_EQ(a.tied()[i].end, b.tied()[i].end - copy);
      }
      EXPECT_TRUE(within(b.owned(), {copy, last.numel()}).empty());
      EXPECT_TRUE(within(b.written(), {copy, last.numel()}).empty());
    }
  }
}

TEST(Placement, MoreRanksThanBlocksLeavesSomeWithoutAny) {
  const ParamTable table = stage_table(true, {0, 2}, 64);
  int empty = 0;
  for (int replica = 0; replica < 64; ++replica)
    empty += Placement(table, {.replicas = 64, .replica = replica, .zero = true}).owned().empty() ? 1 : 0;
  EXPECT_GT(empty, 0);
  EXPECT_LT(empty, 64);
}

}  // namespace
}  // namespace muster::train
