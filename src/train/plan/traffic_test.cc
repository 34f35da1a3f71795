#include "train/plan/traffic.h"

#include <gtest/gtest.h>

#include "train/plan/test_plan.h"

namespace muster::train {
namespace {

// MiCS: M bytes over p ranks, k on a node: (p - k) M / p come into a node with two levels, k times that flat.
TEST(TrafficPlan, TwoLevelsBringEachByteIntoANodeOnce) {
  const std::vector<std::string> common = {"model.preset=llama-110m", "model.tied=false", "train.batch=8",
                                           "train.micro_batch=1", "mesh.shard=8"};
  const auto with = [&](const char* gather) {
    auto settings = common;
    settings.push_back(gather);
    return plan_of(settings, 8, 4).stages[0].traffic;
  };
  const TrafficPlan two = with("mesh.gather=auto"), flat = with("mesh.gather=flat");
  EXPECT_DOUBLE_EQ(two.shard, flat.shard);
  const double gradients =
      4.0 * 4 / 8 * static_cast<double>(parameter_count(config_of(common).model));  // to the other node
  EXPECT_NEAR((flat.across - gradients) / (two.across - gradients), 4.0, 1e-9);
}

}  // namespace
}  // namespace muster::train
