// What a configuration will need on each rank, before anything is allocated: memory, bytes sent in a step,
// the time a pipeline waits. Rules: run_layout.h. Whether it fits: fit.h. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "train/config/config.h"
#include "train/plan/memory.h"
#include "train/plan/run_layout.h"
#include "train/plan/traffic.h"

namespace muster::train {

struct StagePlan {
  Range layers;
  std::int64_t parameters = 0;  // of one tensor-parallel rank, all shards together
  MemoryPlan memory;            // of the rank that needs most
  TrafficPlan traffic;
};

struct Plan {
  RunLayout layout;
  std::vector<StagePlan> stages;
  double bubble = 0;         // share of the time in which stages wait, by arithmetic alone
  double flop_per_step = 0;  // of all ranks
};

// node_ranks: ranks on each node, 0: not known. Errors of run_layout().
Result<Plan> make_plan(const Config& config, int ranks, int node_ranks);

}  // namespace muster::train
