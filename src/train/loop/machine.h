// What this machine gives a rank, and what its bits depend on. Any thread; choose_threads() once a rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "train/comm/comm.h"

namespace muster::train {

// Cores this process may use: its affinity mask, and its cgroup's quota (v2) rounded up.
int usable_cores();

// Memory that this process may use, and may share with others.
struct MemoryLimit {
  std::string id;    // the same for those that share it, and for nobody else
  std::string name;  // for messages: "machine", "cgroup /jobs"
  double bytes = 0;
};
// The machine's, then those of this process's cgroup (v2) and of the ones above it.
std::vector<MemoryLimit> memory_limits();

// wanted > 0: that many. Else the cores shared evenly by the ranks that run on them (same machine, same
// mask), at least 1. Collective.
Result<int> choose_threads(int wanted, int local_ranks, Comm& comm);

// For tensor operations of the calling thread and of those it starts.
void set_threads(int threads);

// Memory of this process that is in RAM now.
std::uint64_t resident_bytes();

// CPU, GEMM code path, threads, library: a resume under another description is not bitwise.
json::Object machine_description(const std::string& gemm_path, int threads);

}  // namespace muster::train
