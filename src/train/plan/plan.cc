#include "train/plan/plan.h"

#include "train/model/flops.h"
#include "train/plan/stage.h"

namespace muster::train {

Result<Plan> make_plan(const Config& config, int ranks, int node_ranks) {
  MUSTER_TRY(RunLayout layout, run_layout(config, ranks));
  Plan plan{.layout = std::move(layout)};
  const FlopPerToken flop = flop_per_token(config.model, config.sequence);
  StageCosts costs;
  for (std::size_t i = 0; i < plan.layout.stages.size(); ++i) {
    const Stage stage(config, plan.layout, static_cast<int>(i));
    plan.stages.push_back({.layers = stage.layers,
                           .parameters = static_cast<std::int64_t>(stage.parameters),
                           .memory = memory_plan(stage),
                           .traffic = traffic_plan(stage, node_ranks)});
    const double layers = value(stage.layers.size()) * flop.layer;
    // The head's forward runs with the backward.
    costs.forward.push_back(layers / 3);
    costs.backward.push_back(layers + (stage.last ? flop.head : 0) - layers / 3);
  }
  plan.bubble = bubble(plan.layout.schedule, static_cast<int>(plan.layout.share.count), costs);
  plan.flop_per_step = flop.whole * value(config.batch * config.sequence);
  return plan;
}

}  // namespace muster::train
