// What a configuration will need on each rank, before anything is allocated: memory, bytes sent in a step,
// the time a pipeline waits. And which configurations cannot work at all: every refusal names the rule and
// what would fit.
//
// Memory counts what muster-train itself makes: weights, gradients, optimizer state, activations, work space,
// what messages need, the buffer of the save in the background; not the program and its libraries. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/data/loader.h"
#include "train/pipeline/schedule.h"

namespace muster::train {

// Where the ranks stand and what each computes, once it is clear that it can work.
struct RunLayout {
  Mesh mesh;
  std::vector<Range> stages;  // layers
  BatchPart share;            // of a rank's part of the batch; the same size for all
  PipelineSchedule schedule;
};
// invalid_argument: ranks, batch, layers, heads or sizes that do not go together. config.model must have
// passed validated().
Result<RunLayout> run_layout(const Config& config, int ranks);

// Bytes on one rank.
struct MemoryPlan {
  double parameters = 0;   // held, and the units at work if they are sharded
  double gradients = 0;    // likewise
  double optimizer = 0;    // moments, and master weights
  double activations = 0;  // of all micro-batches in flight
  double work = 0;         // of one block at a time, the logits, the tokens of the step
  double messages = 0;     // room for the largest sum over ranks
  double save = 0;         // the copy that is written in the background
  double total() const { return parameters + gradients + optimizer + activations + work + messages + save; }
};

// Bytes that one rank sends in a step.
struct TrafficPlan {
  double tensor = 0;    // between the cuts of a layer
  double pipeline = 0;  // to the neighbouring stages
  double shard = 0;     // gathers and reduce-scatters of units
  double across = 0;    // of those, what leaves the node, if it is known how many ranks a node has
  double replica = 0;   // gradients and, with mesh.zero, parameters
  double tied = 0;
  double total() const { return tensor + pipeline + shard + replica + tied; }
};

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

// dtype: of parameters and activations; node_ranks: ranks on each node, 0: not known.
Result<Plan> make_plan(const Config& config, int ranks, int node_ranks, Dtype dtype);

// Memory that some of the ranks share: that of their machine, or what a group of processes there may use.
struct SharedMemory {
  std::string name;  // for messages: "machine", "cgroup /jobs"
  double bytes = 0;
  std::vector<int> ranks;
};
// resource_exhausted if ranks that share a memory need more than it has; names what takes most and what makes
// it less.
Result<void> check_memory(const Plan& plan, std::span<const SharedMemory> memories);

// "Most of it, 3.1 GiB, is for activations: set ..."
std::string what_takes_most(const MemoryPlan& memory);

// For people: a table of the stages, and what follows from it.
std::string to_text(const Plan& plan, const Config& config);

// The layers of each of `stages` stages: config.stage_layers, or balanced by the cost of layers and head.
Result<std::vector<Range>> stage_layers(const Config& config, int stages);

}  // namespace muster::train
