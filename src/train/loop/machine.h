// What this machine gives a rank, and what its bits depend on. Any thread; choose_threads() once a rank.
#pragma once

#include <cstdint>
#include <span>
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

// Of every rank: CPU, GEMM code path, threads, library. A resume under others is not bitwise. Collective.
Result<std::vector<json::Object>> machine_descriptions(const std::string& gemm_path, int threads, Comm& comm);

// In the order in which they come first.
std::vector<json::Object> each_once(std::span<const json::Object> descriptions);

// What keeps ranks on the machines `now`, of every rank, from the bits of a run that was on the kinds `then`:
// the first rank that is on another, or a kind that no rank is on any more. Empty: nothing. Where ranks are
// on several kinds, which is where counts as well, and is not looked at.
std::string not_bitwise(std::span<const json::Object> then, std::span<const json::Object> now);

}  // namespace muster::train
