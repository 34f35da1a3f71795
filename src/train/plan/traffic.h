// What one rank sends in a step, by arithmetic. Pure; any thread.
#pragma once

namespace muster::train {

struct Stage;

// Bytes that one rank sends in a step.
struct TrafficPlan {
  double tensor = 0;    // between the cuts of a layer
  double pipeline = 0;  // to the neighbouring stages
  double shard = 0;     // gathers and reduce-scatters of units
  double across = 0;    // of those, what leaves the node, if it is known how many ranks a node has
  double replica = 0;   // gradients and, with mesh.zero, parameters
  double tied = 0;      // between first and last stage: a tied head's gradient, and the new embedding
  double total() const { return tensor + pipeline + shard + replica + tied; }
};

// Of a rank of the stage. node_ranks: ranks on each node; 0: not known.
TrafficPlan traffic_plan(const Stage& stage, int node_ranks);

}  // namespace muster::train
