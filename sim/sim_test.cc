// A thousand hostile worlds. A failure names its seed: muster-sim --seed N prints its history.
#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/workloads/random.h"

namespace muster::sim {
namespace {

// MUSTER_SIM_SEEDS widens the search.
std::uint64_t seeds() {
  const char* set = std::getenv("MUSTER_SIM_SEEDS");
  return set != nullptr ? std::stoull(set) : 1'000;
}

TEST(Simulation, AThousandSeedsKeepEveryPromise) {
  std::uint64_t commits = 0;
  std::uint64_t crashes = 0;
  std::size_t forgotten = 0;
  int bad = 0;
  for (std::uint64_t seed = 1; seed <= seeds() && bad < 5; ++seed) {
    const auto result = run_seed(seed);
    commits += result.commits;
    crashes += result.crashes;
    forgotten += result.forgotten;
    if (result.violations.empty()) continue;
    ++bad;
    ADD_FAILURE() << "seed " << seed << ": " << result.violations.front() << " (and "
                  << result.violations.size() - 1 << " more; muster-sim --seed " << seed << ")";
  }
  RecordProperty("commits", std::to_string(commits));
  RecordProperty("crashes", std::to_string(crashes));
  EXPECT_GT(crashes, seeds());    // the worlds are hostile indeed
  EXPECT_GT(forgotten, seeds());  // and owe the removal of logs
}

TEST(Simulation, TheSameSeedHasTheSameHistory) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto first = run_seed(seed);
    const auto second = run_seed(seed);
    EXPECT_EQ(first.history, second.history) << seed;
  }
  EXPECT_NE(run_seed(1).history, run_seed(2).history);
}

}  // namespace
}  // namespace muster::sim
