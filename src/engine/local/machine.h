// What the local engine found on this machine when it started: its nodes, its user for jobs, its limits, and
// whether namespaces work.
#pragma once

#include <string>

#include "base/error.h"
#include "domain/cluster.h"
#include "engine/local/cgroups.h"
#include "engine/local/local_engine.h"
#include "engine/local/users.h"

namespace muster::engine::local {

struct Machine {
  domain::Inventory inventory;
  JobUser user;
  Cgroups cgroups;
  bool isolated = true;
  std::string refusal;  // why not
  std::string remedy;
};

// Checks the options (and makes their paths canonical), makes run/ and the cgroups named `cgroups`, and tries
// a node out.
Result<Machine> survey(Options& options, const std::string& cgroups);

// The name of the engine's cgroups: one a data directory.
std::string cgroup_name(const std::string& data_directory);

// The nodes without trying anything: processors and memory divided by `count`.
std::vector<domain::Node> cut_machine(int count);

}  // namespace muster::engine::local
