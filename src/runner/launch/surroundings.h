// What the command of a job finds around it: configuration files, folders, environment and its own words.
// Pure functions of the launch. docs/formats/runner-protocol.md says which names are set.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "domain/launch.h"

namespace muster::runner {

// Facts of this node that the launch does not know.
struct NodeFacts {
  std::string bin_dir;  // of the built-in programs, as seen in the node
  std::string opt_ml = "/opt/ml";
  std::string home = "/";
  std::string user;             // name
  bool names_resolve = true;    // algo-1 and its peers are in /etc/hosts
  std::string credentials_uri;  // with the port that the runner got; empty: none
  std::string credentials_token;
};

// Files below /opt/ml, path -> content: input/config/*.json for a training job, config/*.json for a
// processing job, and the workload's own files.
std::map<std::string, std::string> config_files(const domain::NodeLaunch& launch);

// Folders that exist before the command starts.
std::vector<std::string> folders(const domain::NodeLaunch& launch);

// The whole environment of the command. The request's own names win over the launcher's (MASTER_ADDR, ...)
// but not over those that say who the job is and how it reaches the service.
std::map<std::string, std::string> environment(const domain::NodeLaunch& launch, const NodeFacts& node);

// Program and arguments. The built-in programs run from the node's bin_dir unless the request has an
// entrypoint.
std::vector<std::string> command_line(const domain::NodeLaunch& launch, const NodeFacts& node);

// The port of the rendezvous on algo-1: the same on every rank, different for attempts that run together,
// outside the range that the kernel hands out.
int master_port(const domain::LaunchId& id);

}  // namespace muster::runner
