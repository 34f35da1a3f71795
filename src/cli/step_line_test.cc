#include "cli/step_line.h"

#include <gtest/gtest.h>

namespace muster::cli {
namespace {

std::string shown(std::string_view text) {
  const auto line = parse_step(text);
  return line ? show_step(*line, false) : "another line";
}

TEST(StepLine, IsShownForPeople) {
  EXPECT_EQ(shown("step=180/400 loss=3.4120 grad_norm=0.8 tokens_per_s=11900 rss_mib=812 left_s=112"),
            "step 180/400  loss 3.4120  11.9 k tok/s  left 1 min 52 s");
  EXPECT_EQ(shown("eval step=180 loss=3.4"), "another line");
  EXPECT_EQ(shown("step=180/400"), "another line");
}

// After the last step, and within the last second.
TEST(StepLine, NothingLeftIsNotSaid) {
  EXPECT_EQ(shown("step=400/400 loss=3.4 tokens_per_s=11900 left_s=0"),
            "step 400/400  loss 3.4  11.9 k tok/s");
  EXPECT_EQ(shown("step=399/400 loss=3.4 tokens_per_s=11900 left_s=1"),
            "step 399/400  loss 3.4  11.9 k tok/s  left 1.0 s");
}

}  // namespace
}  // namespace muster::cli
