#include "engine/contract/engine_contract.h"

#include <algorithm>

#include "base/testing.h"

namespace muster::engine::contract {

namespace {

constexpr domain::AttemptId kAttempt{7};
domain::LaunchId launch_id(int rank) { return {.attempt = kAttempt, .rank = rank, .incarnation = 1}; }

const domain::Observation* find(const std::vector<domain::Observation>& all, const domain::LaunchId& id) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.id == id; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

bool EngineContract::alive(const domain::LaunchId& id) {
  const auto all = subject_->engine().observe();
  const auto* one = all ? find(*all, id) : nullptr;
  return one != nullptr && one->alive;
}

bool EngineContract::known(const domain::LaunchId& id) {
  const auto all = subject_->engine().observe();
  return all && find(*all, id) != nullptr;
}

TEST_P(EngineContract, InventoryNamesNodesThatALaunchAccepts) {
  const auto inventory = subject_->engine().inventory();
  ASSERT_OK(inventory);
  ASSERT_GE(inventory->nodes.size(), 2U);
  for (const auto& node : inventory->nodes) {
    EXPECT_FALSE(node.name.empty());
    EXPECT_GE(node.cpus, 1);
    EXPECT_GT(node.memory_bytes, 0U);
  }
}

TEST_P(EngineContract, AGangRunsUntilItIsStopped) {
  ASSERT_OK(subject_->engine().launch(subject_->gang(kAttempt, 2, Conduct::stays)));
  EXPECT_TRUE(alive(launch_id(0)));
  EXPECT_TRUE(alive(launch_id(1)));
  EXPECT_EQ(subject_->exits(launch_id(0)), 0);
  for (int rank = 0; rank < 2; ++rank) ASSERT_OK(subject_->engine().stop(launch_id(rank), Millis{60'000}));
  EXPECT_TRUE(subject_->wait(
      [&] { return subject_->exits(launch_id(0)) == 1 && subject_->exits(launch_id(1)) == 1; }));
  EXPECT_FALSE(alive(launch_id(0)));
  EXPECT_TRUE(known(launch_id(0)));  // until it is released
}

TEST_P(EngineContract, AnObservationNamesTheNodeThatIsHeldAlsoAfterARestart) {
  const auto gang = subject_->gang(kAttempt, 2, Conduct::stays);
  ASSERT_OK(subject_->engine().launch(gang));
  for (int round = 0; round < 2; ++round) {
    const auto all = subject_->engine().observe();
    ASSERT_OK(all);
    for (const auto& launch : gang.nodes) {
      const auto* one = find(*all, launch.id);
      ASSERT_NE(one, nullptr);
      EXPECT_EQ(one->node, launch.node);
    }
    subject_->restart();
  }
  for (int rank = 0; rank < 2; ++rank) ASSERT_OK(subject_->engine().stop(launch_id(rank), Millis{0}));
  EXPECT_TRUE(subject_->wait([&] { return !alive(launch_id(0)) && !alive(launch_id(1)); }));
  EXPECT_EQ(find(*subject_->engine().observe(), launch_id(1))->node, gang.nodes[1].node);
}

TEST_P(EngineContract, ASecondLaunchOfTheSameIdsChangesNothing) {
  const auto gang = subject_->gang(kAttempt, 2, Conduct::stays);
  ASSERT_OK(subject_->engine().launch(gang));
  ASSERT_OK(subject_->engine().launch(gang));
  const auto all = subject_->engine().observe();
  ASSERT_OK(all);
  EXPECT_EQ(all->size(), 2U);
  subject_->restart();
  ASSERT_OK(subject_->engine().launch(gang));
  EXPECT_TRUE(alive(launch_id(0)));
  EXPECT_EQ(subject_->engine().observe()->size(), 2U);
}

TEST_P(EngineContract, ALaunchThatHasEndedIsNotStartedAgain) {
  const auto gang = subject_->gang(kAttempt, 1, Conduct::ends);
  ASSERT_OK(subject_->engine().launch(gang));
  ASSERT_TRUE(subject_->wait([&] { return subject_->exits(launch_id(0)) == 1; }));
  ASSERT_OK(subject_->engine().launch(gang));
  EXPECT_FALSE(alive(launch_id(0)));
}

TEST_P(EngineContract, AllRanksOrNone) {
  const auto gang = subject_->broken_gang(kAttempt);
  ASSERT_GE(gang.nodes.size(), 2U);
  const auto launched = subject_->engine().launch(gang);
  ASSERT_FALSE(launched.has_value());
  EXPECT_FALSE(launched.error().message.empty());
  for (int rank = 0; rank < static_cast<int>(gang.nodes.size()); ++rank) {
    EXPECT_FALSE(alive(launch_id(rank)));
    EXPECT_EQ(subject_->exits(launch_id(rank)), 0);
  }
}

TEST_P(EngineContract, AStubbornRunnerIsKilledAfterTheGrace) {
  ASSERT_OK(subject_->engine().launch(subject_->gang(kAttempt, 1, Conduct::stubborn)));
  ASSERT_OK(subject_->engine().stop(launch_id(0), Millis{50}));
  EXPECT_TRUE(subject_->wait([&] { return subject_->exits(launch_id(0)) == 1; }));
  EXPECT_FALSE(alive(launch_id(0)));
}

TEST_P(EngineContract, AStopInTheFirstMomentIsNotLost) {
  ASSERT_OK(subject_->engine().launch(subject_->gang(kAttempt, 2, Conduct::stays)));
  for (int rank = 0; rank < 2; ++rank) ASSERT_OK(subject_->engine().stop(launch_id(rank), Millis{3'600'000}));
  EXPECT_TRUE(subject_->wait(
      [&] { return subject_->exits(launch_id(0)) == 1 && subject_->exits(launch_id(1)) == 1; }));
}

TEST_P(EngineContract, AKilledRunnerIsAnExitOfThatRankOnly) {
  ASSERT_OK(subject_->engine().launch(subject_->gang(kAttempt, 2, Conduct::stays)));
  subject_->kill_runner(launch_id(1));
  EXPECT_TRUE(subject_->wait([&] { return subject_->exits(launch_id(1)) == 1; }));
  EXPECT_FALSE(alive(launch_id(1)));
  EXPECT_TRUE(alive(launch_id(0)));
  EXPECT_EQ(subject_->exits(launch_id(0)), 0);
}

TEST_P(EngineContract, ARestartFindsWhatRuns) {
  ASSERT_OK(subject_->engine().launch(subject_->gang(kAttempt, 2, Conduct::stays)));
  subject_->restart();
  EXPECT_TRUE(alive(launch_id(0)));
  EXPECT_TRUE(alive(launch_id(1)));
  ASSERT_OK(subject_->engine().stop(launch_id(1), Millis{60'000}));
  EXPECT_TRUE(subject_->wait([&] { return subject_->exits(launch_id(1)) == 1; }));
  subject_->kill_runner(launch_id(0));
  EXPECT_TRUE(subject_->wait([&] { return subject_->exits(launch_id(0)) == 1; }));
}

TEST_P(EngineContract, ReleaseForgetsAndMayBeRepeated) {
  ASSERT_OK(subject_->engine().launch(subject_->gang(kAttempt, 2, Conduct::fails)));
  ASSERT_TRUE(subject_->wait(
      [&] { return subject_->exits(launch_id(0)) == 1 && subject_->exits(launch_id(1)) == 1; }));
  ASSERT_OK(subject_->engine().release(launch_id(0)));
  EXPECT_FALSE(known(launch_id(0)));
  EXPECT_TRUE(known(launch_id(1)));
  ASSERT_OK(subject_->engine().release(launch_id(0)));
}

TEST_P(EngineContract, ReleaseEndsWhatStillRuns) {
  ASSERT_OK(subject_->engine().launch(subject_->gang(kAttempt, 1, Conduct::stubborn)));
  ASSERT_OK(subject_->engine().release(launch_id(0)));
  EXPECT_FALSE(known(launch_id(0)));
}

TEST_P(EngineContract, UnknownLaunchesAreStoppedAndReleased) {
  ASSERT_OK(subject_->engine().stop(launch_id(9), Millis{10}));
  ASSERT_OK(subject_->engine().release(launch_id(9)));
  EXPECT_TRUE(subject_->engine().observe()->empty());
}

}  // namespace muster::engine::contract
