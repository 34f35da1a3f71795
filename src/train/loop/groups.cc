#include "train/loop/groups.h"

namespace muster::train {
namespace {

// Ranks of a shard group on one node if it gathers in two levels, else 0.
Result<int> two_levels(const Config& config, const Mesh& mesh, int node_ranks) {
  const int shards = mesh.extent(Axis::shard);
  if (config.gather == "flat" || shards == 1) return 0;
  const bool wanted = config.gather == "hierarchical";
  if (node_ranks == 0) {
    if (!wanted) return 0;
    return fail(ErrorCode::invalid_argument,
                "mesh.gather = hierarchical: it is not known how many ranks a node has; set it to flat");
  }
  const auto local = mesh.shards_on_node(node_ranks);
  if (!local) return wanted ? local : Result<int>(0);
  return *local == 1 || *local == shards ? 0 : *local;
}

}  // namespace

Result<Groups> make_groups(const Config& config, const Mesh& mesh, Comm& world, int node_ranks) {
  const int rank = world.rank();
  MUSTER_TRY(const int local, two_levels(config, mesh, node_ranks));
  const auto sub = [&](const char* name, std::vector<int> ranks) {
    return world.subgroup(name, std::move(ranks));
  };
  const auto shards = mesh.group(Axis::shard, rank), stages = mesh.group(Axis::pp, rank);
  Groups groups{.mesh = mesh,
                .tp = sub("tp", mesh.group(Axis::tp, rank)),
                .shard = sub("shard", shards),
                .across = nullptr,
                .within = nullptr,
                .replica = sub("replica", mesh.group(Axis::replica, rank)),
                .stages = sub("stages", stages),
                .tied = nullptr};
  if (local > 0) {
    const int mine = mesh.coordinate(Axis::shard, rank);
    std::vector<int> across, within;
    for (int other = 0; other < static_cast<int>(shards.size()); ++other) {
      if (other % local == mine % local) across.push_back(shards[static_cast<std::size_t>(other)]);
      if (other / local == mine / local) within.push_back(shards[static_cast<std::size_t>(other)]);
    }
    groups.across = sub("shard across nodes", across);
    groups.within = sub("shard within a node", within);
  }
  const bool end = rank == stages.front() || rank == stages.back();
  if (config.model.tied && stages.size() > 1 && end)
    groups.tied = sub("tied", {stages.front(), stages.back()});
  return groups;
}

}  // namespace muster::train
