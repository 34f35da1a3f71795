#include "train/plan/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/plan/test_plan.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

constexpr double kGib = 1024.0 * 1024 * 1024;

TEST(Fit, MoreThanTheMachineHasIsRefusedWithWhatWouldHelp) {
  const Plan plan = plan_of({"model.preset=llama-8b", "train.micro_batch=1", "train.batch=8"}, 8);
  std::vector<SharedMemory> apart;
  for (int rank = 0; rank < 8; ++rank)
    apart.push_back({.name = "machine", .bytes = 1024 * kGib, .ranks = {rank}});
  EXPECT_TRUE(check_memory(plan, apart));
  const std::vector<SharedMemory> together = {
      {.name = "machine", .bytes = 1024 * kGib, .ranks = {0, 1, 2, 3, 4, 5, 6, 7}}};
  const auto refused = check_memory(plan, together);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(refused.error().message,
              HasSubstr("the 8 ranks that share the machine of rank 0 need together "));
  EXPECT_THAT(refused.error().message, HasSubstr(" each; it has 1.0"));
  EXPECT_THAT(refused.error().message, HasSubstr("a larger mesh.shard"));
  apart.push_back({.name = "cgroup /jobs", .bytes = 64 * kGib, .ranks = {3}});
  EXPECT_THAT(check_memory(plan, apart).error().message, HasSubstr("; its cgroup /jobs has 64"));
}

}  // namespace
}  // namespace muster::train
