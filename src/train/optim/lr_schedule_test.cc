#include "train/optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace muster::train {
namespace {

TEST(LrSchedule, WarmsUpThenFollowsACosine) {
  const LrSchedule schedule{.peak = 1.0, .warmup = 10, .steps = 110, .final_ratio = 0.1};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(9), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(10), 1.0);
  EXPECT_NEAR(schedule.at(60), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(schedule.at(110), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(100000), 0.1);
  for (std::int64_t i = 10; i < 110; ++i) EXPECT_GT(schedule.at(i), schedule.at(i + 1)) << i;
  const LrSchedule only_warmup{.peak = 2.0, .warmup = 5, .steps = 5, .final_ratio = 0.0};
  EXPECT_DOUBLE_EQ(only_warmup.at(4), 2.0);
  EXPECT_DOUBLE_EQ(only_warmup.at(5), 0.0);
}

}  // namespace
}  // namespace muster::train
