// What the local engine found on this machine when it started: its nodes, its user for jobs, its limits, and
// whether namespaces work. Any thread; calls share nothing but the folder and the control groups of their
// options.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "domain/cluster.h"
#include "engine/local/cgroups.h"
#include "engine/local/handshake.h"
#include "engine/local/local_engine.h"
#include "engine/local/users.h"

namespace muster::engine::local {

struct Machine {
  domain::Inventory inventory;
  JobUser user;
  std::vector<std::string> reach;  // NodePlan::reach of every node
  Cgroups cgroups;
  bool isolated = true;
  std::string refusal;  // why not
  std::string remedy;
};

// Checks the options (and makes their paths canonical), makes run/ and the cgroups named `cgroups`, and tries
// a node out.
Result<Machine> survey(Options& options, const std::string& cgroups);

// What was found out before it is put into words.
struct Findings {
  bool root = false;        // musterd is root
  bool namespaces = true;   // Options::namespaces
  bool user_named = false;  // by `[local] user`
  UserChoice choice;
  NodeReport report;                // of the probe, made with that choice
  std::vector<std::string> limits;  // Cgroups::in_force()
  std::vector<std::string> no_limits;
};

// Whom jobs run as, and what is said at the start and by doctor: isolation and not_isolated of the inventory.
// Nodes and control groups are left empty. Pure.
Machine judge(Findings findings);

// The name of the engine's cgroups: one a data directory.
std::string cgroup_name(const std::string& data_directory);

// "127.a.b.": where the nodes of a data directory have their addresses, a from 64 to 127. Each has its own,
// so that jobs of two services on one machine do not meet when they listen on the same port. Pure.
std::string loopback_network(const std::string& data_directory);

// The nodes without trying anything: processors and memory divided by `count`; addresses from `network` + "1"
// on.
std::vector<domain::Node> cut_machine(int count, const std::string& network);

}  // namespace muster::engine::local
