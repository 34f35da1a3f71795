// Tries a node out: makes one with the real runner program, hears what is in force, and takes it down. Any
// thread; calls share nothing but the folders that they are given.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/local/handshake.h"
#include "engine/local/run_folder.h"

namespace muster::engine::local {

// `plan` is completed (probe, host name). A machine that refuses namespaces answers a report with an error;
// an error means that the runner program could not be started or is not one.
Result<NodeReport> probe(const std::string& runner_program, const std::string& run_directory, NodePlan plan);

// Makes the files of a node's folder that enter_node() needs, but launch.json and token.
Result<void> furnish_folder(const std::string& folder, const NodePlan& plan, const std::string& hosts);

// The machine's /etc/hosts without any algo-N, then `names` ("address name" a line).
std::string hosts_file(const std::vector<std::string>& names);

// SIGKILL to a runner that we started, and reaps it. Its node goes with it.
void end_child(pid_t pid);

}  // namespace muster::engine::local
