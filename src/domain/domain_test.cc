#include <gtest/gtest.h>

#include "domain/job.h"

namespace muster::domain {
namespace {

TEST(LaunchId, TextRoundTripsAndNothingElseParses) {
  const LaunchId id{AttemptId{12}, 3, 2};
  EXPECT_EQ(to_string(id), "a12-r3-i2");
  EXPECT_EQ(parse_launch_id("a12-r3-i2"), id);
  for (const auto* bad : {"", "a12", "a12-r3", "a12-r3-i", "a-r3-i2", "a12-r-3-i2", "b12-r3-i2",
                          "a12-r3-i2/..", "a12-r9999999-i1", "a99999999999999999999-r0-i1"}) {
    EXPECT_FALSE(parse_launch_id(bad)) << bad;
  }
}

TEST(Words, RoundTrip) {
  for (int i = 0; i <= static_cast<int>(Phase::ended); ++i) {
    EXPECT_EQ(parse_phase(to_string(static_cast<Phase>(i))), static_cast<Phase>(i));
  }
  for (int i = 0; i <= static_cast<int>(RankPhase::lost); ++i) {
    EXPECT_EQ(parse_rank_phase(to_string(static_cast<RankPhase>(i))), static_cast<RankPhase>(i));
  }
  EXPECT_FALSE(parse_phase("paused"));
}

TEST(LogNames, AreThoseOfSageMaker) {
  EXPECT_EQ(log_group(JobKind::processing), "/aws/sagemaker/ProcessingJobs");
  EXPECT_EQ(log_stream("demo", 1, Time{1700000000123}), "demo/algo-2-1700000000123");
}

}  // namespace
}  // namespace muster::domain
