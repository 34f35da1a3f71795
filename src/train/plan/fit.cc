#include "train/plan/fit.h"

#include <algorithm>

#include "train/plan/text.h"

namespace muster::train {

std::string what_takes_most(const MemoryPlan& m) {
  const std::pair<double, const char*> parts[] = {
      {m.parameters + m.gradients,
       "parameters and gradients: choose a smaller model, or a larger mesh.shard, mesh.tp or mesh.pp"},
      {m.optimizer, "the optimizer's state: set mesh.zero = 1 or a larger mesh.shard"},
      {m.activations,
       "activations: set train.activation_checkpointing = full or a smaller train.micro_batch"},
      {m.work,
       "the work space of a block and the logits: set a smaller train.micro_batch or a larger mesh.tp"},
      {m.messages, "messages of sums over ranks: set mesh.zero = 1 or a larger mesh.tp or mesh.pp"},
      {m.save,
       "the copy of the state that a save writes, cut over replicas and shards: use more of them on more "
       "machines (mesh.replica, mesh.shard), or choose a smaller model"}};
  const auto& largest = *std::ranges::max_element(parts, {}, [](const auto& part) { return part.first; });
  return "Most of it, " + amount(largest.first) + " a rank, is for " + largest.second;
}

Result<void> check_memory(const Plan& plan, std::span<const SharedMemory> memories) {
  const Mesh& mesh = plan.layout.mesh;
  const auto plan_of = [&](int rank) -> const MemoryPlan& {
    return plan.stages[static_cast<std::size_t>(mesh.coordinate(Axis::pp, rank))].memory;
  };
  for (const SharedMemory& memory : memories) {
    double needed = 0;
    const MemoryPlan* most = nullptr;
    for (const int rank : memory.ranks) {
      const MemoryPlan& one = plan_of(rank);
      needed += one.total();
      if (most == nullptr || one.total() > most->total()) most = &one;
    }
    if (needed <= memory.bytes) continue;
    const std::string first = "rank " + std::to_string(memory.ranks.front());
    return fail(
        ErrorCode::resource_exhausted,
        (memory.ranks.size() == 1 ? first + " needs " + amount(needed) + "; its " + memory.name + " has "
                                  : "the " + std::to_string(memory.ranks.size()) + " ranks that share the " +
                                        memory.name + " of " + first + " need together " + amount(needed) +
                                        ", up to " + amount(most->total()) + " each; it has ") +
            amount(memory.bytes) + ". " + what_takes_most(*most));
  }
  return {};
}

}  // namespace muster::train
