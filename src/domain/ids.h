// Names and ids of the domain. Values only.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace muster::domain {

using JobId = StrongId<struct JobIdTag>;
using AttemptId = StrongId<struct AttemptIdTag>;

// Nodes are named by their engine: "node-1".
using NodeName = std::string;

// One start of one rank. `incarnation` rises with every launch of that rank: a message of an older
// incarnation is stale, and its sender must kill its job and exit.
struct LaunchId {
  AttemptId attempt;
  int rank = 0;         // 0 .. nodes-1
  int incarnation = 1;  // from 1
  auto operator<=>(const LaunchId&) const = default;
};

std::string to_string(const LaunchId& id);                       // "a12-r0-i1"
std::optional<LaunchId> parse_launch_id(std::string_view text);  // the whole text

}  // namespace muster::domain
