// Scenarios: a cluster, what happens when, and what must be seen. docs/formats/scenarios.md.
//
//   cluster   4 nodes
//   at  0s    submit a  4 nodes
//   expect    a launching on node-1 node-2 node-3 node-4
//   at 60s    a exits 0 on every node
//   expect    a ended succeeded
//
// They run in the same world as the random seeds, without faults but those that the text asks for. Worlds
// share nothing: any thread may run one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::sim {

struct ScenarioResult {
  std::vector<std::string> failures;  // "line 7: ..."; empty: it passed
  std::vector<std::string> history;
};

ScenarioResult run_scenario(std::string_view text);
ScenarioResult run_scenario_file(const std::string& path);

}  // namespace muster::sim
