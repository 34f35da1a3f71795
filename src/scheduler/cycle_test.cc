#include "scheduler/cycle.h"

#include <gtest/gtest.h>

namespace muster::scheduler {
namespace {

Snapshot cluster(std::initializer_list<NodeState> nodes) { return Snapshot{nodes}; }

TEST(Plan, GivesAllNodesOrNoneInOrder) {
  const auto free4 =
      cluster({{"n1", true, "", ""}, {"n2", true, "", ""}, {"n3", true, "", ""}, {"n4", true, "", ""}});
  const auto result =
      plan(free4, {{.job = {1}, .name = "a", .nodes = 3}, {.job = {2}, .name = "b", .nodes = 1}});
  ASSERT_EQ(result.admitted.size(), 2U);
  EXPECT_EQ(result.admitted[0].nodes, (std::vector<domain::NodeName>{"n1", "n2", "n3"}));
  EXPECT_EQ(result.admitted[1].nodes, (std::vector<domain::NodeName>{"n4"}));
}

TEST(Plan, NothingPassesAHeadThatWaits) {
  const auto snapshot = cluster({{"n1", true, "", ""}, {"n2", true, "", "job x"}});
  EXPECT_TRUE(plan(snapshot, {{{1}, "a", 2}, {{2}, "b", 1}}).admitted.empty());
}

TEST(Plan, UnhealthyAndHeldNodesAreNoCandidates) {
  const auto snapshot =
      cluster({{"n1", false, "cordoned", ""}, {"n2", true, "", "job x"}, {"n3", true, "", ""}});
  const auto result = plan(snapshot, {{{1}, "a", 1}, {{2}, "b", 1}});
  ASSERT_EQ(result.admitted.size(), 1U);
  EXPECT_EQ(result.admitted[0].nodes, (std::vector<domain::NodeName>{"n3"}));
}

TEST(Describe, GivesTheNumbers) {
  const auto snapshot = cluster(
      {{"n1", true, "", "job a"}, {"n2", true, "", "job a"}, {"n3", true, "", ""}, {"n4", true, "", ""}});
  const std::vector<Gang> queue = {{{2}, "b", 4}, {{3}, "c", 1}};
  EXPECT_EQ(describe(*blocked(snapshot, queue, 0)), "needs 4 nodes; 2 of 4 are free, 2 are held by job a");
  EXPECT_EQ(describe(*blocked(snapshot, queue, 1)),
            "is 2nd in the queue, behind job b, which needs 4 nodes; 2 of 4 are free, 2 are held by job a");
  EXPECT_EQ(blocked(snapshot, queue, 700)->position, 701);  // only the front is given
  EXPECT_FALSE(blocked(snapshot, {{{2}, "b", 2}}, 0));
}

TEST(Describe, CountsWhatTheSameCycleAdmits) {
  const auto snapshot = cluster({{"n1", true, "", ""}, {"n2", false, "XID 79", ""}});
  EXPECT_EQ(describe(*blocked(snapshot, {{{1}, "a", 1}, {{2}, "b", 1}}, 1)),
            "needs 1 node; 0 of 2 are free, 1 is held by job a, n2 is not healthy (XID 79)");
  EXPECT_EQ(describe(*blocked(snapshot, {{{1}, "a", 3}}, 0)),
            "needs 3 nodes; this service has 2: it starts when nodes are added");
}

}  // namespace
}  // namespace muster::scheduler
