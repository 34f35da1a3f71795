#include "train/plan/plan.h"

#include <gtest/gtest.h>

#include "train/plan/test_plan.h"

namespace muster::train {
namespace {

// 1F1B keeps as many micro-batches as stages follow; GPipe all of them.
TEST(Plan, ThePipelineKeepsWhatItsScheduleSays) {
  const auto stages = [](const char* schedule) {
    return plan_of({"model.preset=llama-110m", "train.batch=16", "train.micro_batch=1", "mesh.pp=4",
                    std::string("mesh.schedule=") + schedule},
                   4);
  };
  const Plan a = stages("1f1b"), b = stages("gpipe");
  EXPECT_NEAR(b.stages[1].memory.activations / a.stages[1].memory.activations, 16.0 / 3, 0.01);
  EXPECT_GT(a.bubble, 3.0 / 19 - 0.02);
  EXPECT_LT(a.bubble, 0.35);  // the head makes the last stage uneven
}

}  // namespace
}  // namespace muster::train
