#include "train/plan/plan.h"

#include <algorithm>
#include <iostream>

#include "apps/muster-train/commands.h"
#include "apps/muster-train/sources.h"
#include "base/text.h"
#include "train/agent/agent.h"
#include "train/loop/machine.h"
#include "train/plan/fit.h"
#include "train/plan/text.h"

namespace muster::train {
namespace {

// The vocabulary is the data's if there is any, else that of the preset.
Result<ModelConfig> model_of(const Config& config) {
  ModelConfig model = config.model;
  if (model.vocab == 0 && !config.train_data.empty()) {
    MUSTER_TRY(const auto stream, open_tokens(config.train_data, config.mixture));
    model.vocab = stream->vocab_size();
  }
  if (model.vocab == 0 && !config.preset.empty()) {
    MUSTER_TRY(const ModelConfig sizes, preset(config.preset));
    model.vocab = sizes.vocab;
  }
  if (model.vocab == 0) {
    return fail(
        ErrorCode::invalid_argument,
        "the vocabulary is not known: give --set model.vocab=N, model.preset, model.from or data.train");
  }
  return validated(model);
}

// Whether the nodes would fit into machines like this one.
std::string verdict(const Plan& plan, int node_ranks) {
  const auto limits = memory_limits();
  const MemoryLimit& least = *std::ranges::min_element(limits, {}, &MemoryLimit::bytes);
  std::vector<SharedMemory> nodes;
  for (int rank = 0; rank < plan.layout.mesh.world(); ++rank) {
    if (rank % node_ranks == 0) nodes.push_back({.name = least.name, .bytes = least.bytes, .ranks = {}});
    nodes.back().ranks.push_back(rank);
  }
  const auto fits = check_memory(plan, nodes);
  return fits ? "on nodes with the memory of this one, " +
                    format_bytes(static_cast<std::uint64_t>(least.bytes)) + ", it fits"
              : "on nodes like this one it does not fit: " + fits.error().message;
}

Result<void> plan(const PlanArguments& arguments) {
  MUSTER_TRY(auto sources, read_sources(arguments.source));
  Config& config = sources.config;
  MUSTER_TRY(config.model, model_of(config));
  const int node_ranks = arguments.ranks_per_node > 0 ? arguments.ranks_per_node : arguments.ranks;
  MUSTER_TRY(const Plan made, make_plan(config, arguments.ranks, node_ranks));
  std::cout << to_text(made, config) << "\n" << verdict(made, node_ranks) << "\n";
  return {};
}

}  // namespace

int plan_command(const PlanArguments& arguments) {
  const auto done = plan(arguments);
  if (done) return kExitDone;
  std::cerr << "muster-train: " << done.error().message << "\n";
  return exit_code(done.error());
}

}  // namespace muster::train
