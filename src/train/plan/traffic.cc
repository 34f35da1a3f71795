#include "train/plan/traffic.h"

#include <algorithm>

#include "train/plan/stage.h"

namespace muster::train {
namespace {

// Of each block the output is summed over the ranks, and the gradient of its input: 4 times T x W, as a sum
// is a reduce-scatter and a gather. Under sequence parallelism these two are apart, and what is gathered
// forward is gathered again where it is not kept.
double tensor(const Stage& s) {
  double again = 0;
  if (s.layout.activation_checkpointing == ActivationCheckpointing::full) again = s.sequence_parallel ? 3 : 2;
  if (s.layout.activation_checkpointing == ActivationCheckpointing::selective && s.sequence_parallel)
    again = 2;
  const double times = value(s.layers.size()) * (8 + again) + (s.first ? 2 : 0) + (s.last ? 2 : 0);
  const double stream = s.micros * s.bytes.narrow * s.tokens * value(s.local.width) * spread(s.tp) * times;
  const double softmax = s.last ? s.micros * s.tokens * 3 * sizeof(double) * (s.tp - 1) : 0;
  return stream + softmax;
}

double pipeline(const Stage& s) {
  if (s.pp == 1) return 0;
  const double rows = s.sequence_parallel ? s.tokens / s.tp : s.tokens;
  return s.micros * s.bytes.narrow * rows * value(s.local.width) * ((s.first ? 0 : 1) + (s.last ? 0 : 1));
}

void add_shard(const Stage& s, int node_ranks, TrafficPlan& t) {
  const double tail = s.gradients - s.parameters;  // a tied head's values are gathered, too
  const double gathered = s.micros * s.bytes.narrow * spread(s.shards) *
                          (2 * (s.parameters + tail) - (s.last ? s.head : 0) - (s.first ? s.embedding : 0));
  const double scattered = s.micros * s.bytes.wide * spread(s.shards) * s.gradients;
  t.shard = gathered + scattered;
  if (node_ranks == 0) return;
  const auto local = s.layout.mesh.shards_on_node(node_ranks);
  const double here = local ? *local : 1;
  // In two levels each rank sends its part to one rank of each other node; a reduce-scatter to all of them.
  const bool two_levels = local && *local > 1 && *local < s.shards && s.config.gather != "flat";
  const double others = std::max(1, s.shards - 1);
  t.across =
      (two_levels ? gathered * (s.shards / here - 1) / others : gathered * (s.shards - here) / others) +
      scattered * (s.shards - here) / others;
}

double replica(const Stage& s) {
  const double back = s.config.zero == 1 ? s.bytes.narrow * s.parameters : s.bytes.wide * s.gradients;
  return spread(s.replicas) * (s.bytes.wide * s.gradients + back) / s.shards;
}

double tied(const Stage& s) {
  if (!s.config.model.tied || s.pp == 1 || !(s.first || s.last)) return 0;
  return (s.first ? s.bytes.narrow : s.bytes.wide) * s.embedding / s.shards / s.owners;
}

}  // namespace

TrafficPlan traffic_plan(const Stage& stage, int node_ranks) {
  TrafficPlan traffic;
  traffic.tensor = tensor(stage);
  traffic.pipeline = pipeline(stage);
  add_shard(stage, node_ranks, traffic);
  traffic.replica = replica(stage);
  traffic.tied = tied(stage);
  return traffic;
}

}  // namespace muster::train
