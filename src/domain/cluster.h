// The nodes as an engine sees them, and what it sees running. Pure values, never durable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "domain/ids.h"

namespace muster::domain {

struct Node {
  NodeName name;
  int cpus = 1;
  std::uint64_t memory_bytes = 0;
  std::string address;
  bool healthy = true;
  std::string message;  // why not, or what is not enforced
};

struct Inventory {
  std::vector<Node> nodes;                // in the order in which ranks are placed
  std::vector<std::string> isolation;     // what is in force: "mount namespace", "pid namespace", ...
  std::vector<std::string> not_isolated;  // what is not, and why
  std::vector<std::string> in_words;      // the same in sentences, for people
};

// A rank that the engine knows to be alive, or to have ended without being released.
struct Observation {
  LaunchId id;
  NodeName node;  // it holds this node until released
  bool alive = false;
};

}  // namespace muster::domain
