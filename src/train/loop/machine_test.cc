#include "train/loop/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/comm/test_ranks.h"

namespace muster::train {
namespace {

// Ranks of one machine that may use the same cores, as here.
TEST(Machine, RanksShareItsCores) {
  const auto threads = [](int ranks) {
    return on_ranks(ranks, [&](Comm& comm) { return choose_threads(0, ranks, comm).value(); });
  };
  const int alone = threads(1)[0];
  for (const int mine : threads(64)) EXPECT_EQ(mine, std::max(1, alone / 64));
  for (const int mine : on_ranks(2, [](Comm& comm) { return choose_threads(5, 2, comm).value(); }))
    EXPECT_EQ(mine, 5);
}

TEST(Machine, EveryRankKnowsTheMachinesOfAll) {
  const auto all =
      on_ranks(3, [](Comm& comm) { return machine_descriptions("path", 1 + comm.rank(), comm).value(); });
  for (const auto& machines : all) {
    std::vector<std::int64_t> threads;
    for (const json::Object& one : machines) threads.push_back(json::opt_int(one, "threads").value());
    EXPECT_THAT(threads, testing::ElementsAre(1, 2, 3));
  }
}

}  // namespace
}  // namespace muster::train
