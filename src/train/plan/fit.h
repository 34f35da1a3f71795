// Whether a plan fits into the memories of the machines, and what would make it fit. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "train/plan/plan.h"

namespace muster::train {

// Memory that some of the ranks share: that of their machine, or what a group of processes there may use.
struct SharedMemory {
  std::string name;  // for messages: "machine", "cgroup /jobs"
  double bytes = 0;
  std::vector<int> ranks;
};
// resource_exhausted if ranks that share a memory need more than it has; names what takes most and what makes
// it less.
Result<void> check_memory(const Plan& plan, std::span<const SharedMemory> memories);

// "Most of it, 3.1 GiB a rank, is for activations: set ..."
std::string what_takes_most(const MemoryPlan& memory);

}  // namespace muster::train
