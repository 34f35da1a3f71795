#include "train/shard/data_parallel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/rng.h"
#include "train/comm/thread.h"

namespace muster::train {
namespace {

ParamTable table_of(bool tied, std::int64_t vocab = 600) {
  ModelConfig config = *preset("tiny", vocab);
  config.tied = tied;
  return ParamTable(*validated(config));
}

TEST(Cut, IsAtBlocksWithoutGapsAndAboutEven) {
  const ParamTable table = table_of(false);
  for (const int parts : {1, 2, 3, 7, 64}) {
    const auto cuts = cut_at_blocks(table, parts);
    ASSERT_EQ(cuts.size(), static_cast<std::size_t>(parts));
    std::int64_t end = 0;
    for (const Range& cut : cuts) {
      EXPECT_EQ(cut.begin, end);
      end = cut.end;
      EXPECT_LE(cut.size(), table.numel() / parts + ParamTable::kBlock);
      const auto at_block = [&](std::int64_t at) {
        return at == table.numel() ||
               std::ranges::any_of(table.blocks(), [&](const Range& b) { return b.begin == at; });
      };
      EXPECT_TRUE(at_block(cut.end)) << cut.end;
    }
    EXPECT_EQ(end, table.numel());
  }
}

TEST(Cut, MorePartsThanBlocksLeavesSomeEmpty) {
  const ParamTable table = table_of(true, 64);
  const int parts = static_cast<int>(table.blocks().size()) + 5;
  const auto cuts = cut_at_blocks(table, parts);
  EXPECT_GE(std::ranges::count_if(cuts, [](const Range& cut) { return cut.size() == 0; }), 5);
  EXPECT_EQ(cuts.back().end, table.numel());
}

FlatBuffer gradient_of(const ParamTable& table, int rank) {
  Rng rng(100 + static_cast<std::uint64_t>(rank));
  FlatBuffer buffer(table.gradient_numel(), Dtype::f32);
  for (float& value : buffer.as<float>())
    value = static_cast<float>((rng.uniform() - 0.5) * static_cast<double>(1ULL << rng.below(20)));
  return buffer;
}

struct Outcome {
  std::vector<float> owned;  // the reduced gradient of what the rank owns
  Range range;
  double squares = 0;
  std::vector<float> gathered;  // parameters: each element as its owner wrote it
};

std::vector<Outcome> run(const ParamTable& table, int zero, int size) {
  ThreadWorld world(size);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, transport = world.join(rank)]() mutable {
      Comm comm("batch", std::move(transport));
      DataParallel replicas(table, zero, comm);
      Outcome& out = outcomes[static_cast<std::size_t>(rank)];
      out.range = replicas.owned();
      FlatBuffer gradients = gradient_of(table, rank);
      ASSERT_TRUE(replicas.reduce(gradients));
      const auto owned = gradients.as<float>(out.range);
      out.owned.assign(owned.begin(), owned.end());
      out.squares = replicas.square_sum(gradients).value();
      FlatBuffer parameters(table.numel(), Dtype::f32);
      std::ranges::copy(owned, parameters.as<float>(out.range).begin());
      ASSERT_TRUE(replicas.gather(parameters));
      out.gathered.assign(parameters.as<float>().begin(), parameters.as<float>().end());
      ASSERT_TRUE(comm.barrier());
    });
  }
  threads.clear();
  return outcomes;
}

TEST(DataParallel, OwnersHaveTheBitsOfTheFullSum) {
  for (const bool tied : {false, true}) {
    for (const int size : {1, 2, 3, 5}) {
      const ParamTable table = table_of(tied);
      const auto whole = run(table, 0, size), cut = run(table, 1, size);
      std::int64_t end = 0;
      for (std::size_t rank = 0; rank < cut.size(); ++rank) {
        const Range range = cut[rank].range;
        EXPECT_EQ(range.begin, end);
        end = range.end;
        ASSERT_EQ(whole[rank].range.size(), table.numel());
        EXPECT_EQ(std::memcmp(cut[rank].owned.data(), whole[rank].owned.data() + range.begin,
                              static_cast<std::size_t>(range.size()) * sizeof(float)),
                  0)
            << "rank " << rank << " of " << size;
        EXPECT_EQ(cut[rank].squares, whole[0].squares);
        EXPECT_EQ(cut[rank].gathered, whole[rank].owned);
      }
      EXPECT_EQ(end, table.numel());
    }
  }
}

// Ranks beyond the number of blocks own nothing and take part all the same.
TEST(DataParallel, MoreRanksThanBlocks) {
  const ParamTable table = table_of(true, 64);
  const int size = 24;
  ASSERT_LT(table.blocks().size(), 24U);
  const auto whole = run(table, 0, size), cut = run(table, 1, size);
  for (const auto& rank : cut) {
    EXPECT_EQ(rank.squares, whole[0].squares);
    EXPECT_EQ(rank.gathered, whole[0].owned);
  }
}

}  // namespace
}  // namespace muster::train
