#include "train/plan/memory.h"

#include <gtest/gtest.h>

#include "train/plan/test_plan.h"

namespace muster::train {
namespace {

// A model of 8 billion parameters takes 128 GB for weights, gradients and AdamW, wherever it lies.
TEST(MemoryPlan, StateIsSharedByShardsCutsAndStages) {
  const std::vector<std::string> model = {"model.preset=llama-8b", "train.micro_batch=1", "train.batch=32"};
  const auto state = [&](std::vector<std::string> mesh, int ranks) {
    mesh.insert(mesh.begin(), model.begin(), model.end());
    const Plan plan = plan_of(mesh, ranks);
    double bytes = 0;
    for (const StagePlan& stage : plan.stages)
      bytes += stage.memory.parameters + stage.memory.gradients + stage.memory.optimizer;
    return bytes;
  };
  const double whole = 16.0 * static_cast<double>(parameter_count(config_of(model).model));
  EXPECT_GT(whole, 128e9);
  EXPECT_DOUBLE_EQ(state({}, 1), whole);
  EXPECT_DOUBLE_EQ(state({}, 4), whole);
  EXPECT_NEAR(state({"mesh.zero=1"}, 4), whole * (0.5 + 0.5 / 4), 1e3);
  EXPECT_NEAR(state({"mesh.tp=8"}, 8), whole / 8, 0.001 * whole);  // the norms are on every cut
  EXPECT_NEAR(state({"mesh.pp=4"}, 4), whole, 1e3);                // of all stages together
  const double sharded = state({"mesh.shard=8"}, 8);
  EXPECT_GT(sharded, whole / 8);  // and the largest unit at work
  EXPECT_LT(sharded, whole / 8 + 2 * 4 * 1.06 * 128256 * 4096);
}

TEST(MemoryPlan, CheckpointingTradesActivations) {
  const auto activations = [](const char* how) {
    return plan_of({"model.preset=llama-1b", "train.micro_batch=4", "train.sequence=2048", "train.batch=4",
                    std::string("train.activation_checkpointing=") + how},
                   1)
        .stages[0]
        .memory.activations;
  };
  EXPECT_LT(activations("selective"), 0.8 * activations("none"));
  EXPECT_LT(activations("full"), 0.25 * activations("none"));
}

}  // namespace
}  // namespace muster::train
