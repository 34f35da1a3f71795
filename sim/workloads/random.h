// Random worlds: what is submitted, stopped, pruned and broken follows from the seed alone. Worlds share
// nothing: any thread may run one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/world/world.h"

namespace muster::sim {

struct RunResult {
  std::vector<std::string> violations;
  std::vector<std::string> history;
  std::uint64_t history_hash = 0;
  std::uint64_t commits = 0;
  std::uint64_t crashes = 0;
  Millis virtual_time{0};
  std::size_t jobs = 0;
  std::size_t forgotten = 0;  // by a prune
};

// One world from its first second until everything has ended.
RunResult run_seed(std::uint64_t seed);

}  // namespace muster::sim
