// A gang for tests of engines. Pure; any thread.
#pragma once

#include <string>
#include <utility>

#include "domain/launch.h"

namespace muster::engine::contract {

// One rank on each of node-1, node-2, ..., without a workload.
inline domain::GangLaunch gang_on_first_nodes(domain::AttemptId attempt, int ranks) {
  domain::GangLaunch gang{.attempt = attempt, .nodes = {}, .runner_tokens = {}};
  for (int rank = 0; rank < ranks; ++rank) {
    domain::NodeLaunch launch;
    launch.id = {.attempt = attempt, .rank = rank, .incarnation = 1};
    launch.world = ranks;
    launch.node = "node-" + std::to_string(rank + 1);
    gang.nodes.push_back(std::move(launch));
    gang.runner_tokens.push_back("secret-of-rank-" + std::to_string(rank));
  }
  return gang;
}

}  // namespace muster::engine::contract
