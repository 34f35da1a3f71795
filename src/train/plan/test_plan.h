// Plans of the tests, by configuration keys that must be good. Any thread.
#pragma once

#include <string>
#include <vector>

#include "train/plan/plan.h"

namespace muster::train {

inline Config config_of(const std::vector<std::string>& assignments) {
  std::vector<Setting> settings;
  for (const auto& text : assignments) settings.push_back(*parse_assignment(text));
  Config config = resolve(settings).value();
  if (config.model.vocab == 0) config.model.vocab = preset(config.preset).value().vocab;
  config.model = validated(config.model).value();
  return config;
}

inline Plan plan_of(const std::vector<std::string>& assignments, int ranks, int node_ranks = 0) {
  return make_plan(config_of(assignments), ranks, node_ranks).value();
}

}  // namespace muster::train
