#include "train/shard/data_parallel.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "train/comm/test_ranks.h"

namespace muster::train {
namespace {

ParamTable table_of(bool tied, std::int64_t vocab = 600) {
  ModelConfig config = *preset("tiny", vocab);
  config.tied = tied;
  return ParamTable(*validated(config));
}

FlatBuffer gradient_of(const ParamTable& table, int rank) {
  Rng rng(100 + static_cast<std::uint64_t>(rank));
  FlatBuffer buffer(table.gradient_numel(), Dtype::f32);
  for (float& value : buffer.as<float>())
    value = static_cast<float>((rng.uniform() - 0.5) * static_cast<double>(1ULL << rng.below(20)));
  return buffer;
}

struct Outcome {
  std::vector<Range> owned;
  std::map<std::int64_t, float> reduced;  // the gradient of what the rank owns, by its place
  std::vector<double> squares;
  std::vector<float> gathered;  // parameters: each element as its owner wrote it
};

std::vector<Outcome> run(const ParamTable& table, bool zero, int size) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  on_ranks(size, [&](Comm& comm) {
    const int rank = comm.rank();
    Comm alone("shard", single_transport());
    DataParallel replicas(table, {.replicas = size, .replica = rank, .zero = zero},
                          {.shard = &alone, .replica = &comm});
    Outcome& out = outcomes[static_cast<std::size_t>(rank)];
    out.owned = replicas.placement().owned();
    FlatBuffer gradients = gradient_of(table, rank);
    ASSERT_TRUE(replicas.reduce(gradients));
    FlatBuffer parameters(table.numel(), Dtype::f32);
    for (const Range& piece : out.owned) {
      const auto reduced = gradients.as<float>(piece);
      std::ranges::copy(reduced, parameters.as<float>(piece).begin());
      for (std::int64_t i = 0; i < piece.size(); ++i)
        out.reduced[piece.begin + i] = reduced[static_cast<std::size_t>(i)];
    }
    out.squares = replicas.squares(gradients).value();
    ASSERT_TRUE(replicas.gather(parameters));
    out.gathered.assign(parameters.as<float>().begin(), parameters.as<float>().end());
    ASSERT_TRUE(comm.barrier());
  });
  return outcomes;
}

TEST(DataParallel, OwnersHaveTheBitsOfTheFullSum) {
  for (const bool tied : {false, true}) {
    for (const int size : {1, 2, 3, 5}) {
      const ParamTable table = table_of(tied);
      const auto whole = run(table, false, size), cut = run(table, true, size);
      std::size_t elements = 0;
      for (std::size_t rank = 0; rank < cut.size(); ++rank) {
        ASSERT_EQ(whole[rank].reduced.size(), static_cast<std::size_t>(table.numel()));
        for (const auto& [at, value] : cut[rank].reduced)
          ASSERT_EQ(value, whole[rank].reduced.at(at)) << "rank " << rank << " of " << size;
        elements += cut[rank].reduced.size();
        EXPECT_EQ(cut[rank].squares, whole[0].squares);
        EXPECT_EQ(cut[rank].gathered, whole[rank].gathered);
      }
      EXPECT_EQ(elements, static_cast<std::size_t>(table.numel()));
    }
  }
}

// Ranks beyond the number of blocks own nothing and take part all the same.
TEST(DataParallel, MoreRanksThanBlocks) {
  const ParamTable table = table_of(true, 64);
  const int size = 24;
  ASSERT_LT(table.blocks().size(), 24U);
  const auto whole = run(table, false, size), cut = run(table, true, size);
  for (const auto& rank : cut) {
    EXPECT_EQ(rank.squares, whole[0].squares);
    EXPECT_EQ(rank.gathered, whole[0].gathered);
  }
}

}  // namespace
}  // namespace muster::train
