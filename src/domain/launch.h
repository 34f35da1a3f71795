// One rank's launch, as the engine and then the runner get it. Pure values.
#pragma once

#include <string>
#include <vector>

#include "domain/ids.h"
#include "domain/workload.h"

namespace muster::domain {

struct Host {
  std::string name;     // algo-1
  std::string address;  // filled by the engine
};

// Everything a runner knows at its start. Nothing in it assumes 127.0.0.1: the engine says how the control
// plane, the peers and the node itself are reached.
struct NodeLaunch {
  LaunchId id;
  int world = 1;  // ranks of the gang
  NodeName node;
  Time attempt_created;  // names the log stream
  Workload workload;
  // Filled by the engine:
  std::string endpoint_url;     // of musterd, as seen from the node
  std::string credentials_uri;  // where the job asks for its credentials, on an address of the node
  std::string address;          // of the node
  std::string interface;        // network interface of that address: "lo"
  std::vector<Host> hosts;      // of all ranks, by rank
  std::string notice;           // what is not enforced or is rehearsed, for the log and the status message
};

struct GangLaunch {
  AttemptId attempt;
  std::vector<NodeLaunch> nodes;  // by rank
  std::vector<std::string>
      runner_tokens;  // by rank: the runner's own credential, never in argv or environment
};

}  // namespace muster::domain
