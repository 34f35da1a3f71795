#include "train/agent/discover.h"

#include <algorithm>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "train/agent/launchers.h"

namespace muster::train {
namespace {

// One fact as several sources tell it; the first that speaks decides, the others must agree.
template <typename T>
class Fact {
 public:
  explicit Fact(std::string name) : name_(std::move(name)) {}

  Result<void> add(std::optional<T> value, const std::string& source) {
    if (!value) return {};
    if (!value_) {
      value_ = std::move(value);
      source_ = source;
      return {};
    }
    if (*value_ == *value) return {};
    return fail(ErrorCode::invalid_argument, name_ + ": " + source_ + " says " + std::to_string(*value_) +
                                                 ", " + source + " says " + std::to_string(*value) +
                                                 "; make them agree or drop one");
  }
  const std::optional<T>& value() const { return value_; }
  const std::string& source() const { return source_; }

 private:
  std::string name_;
  std::optional<T> value_;
  std::string source_;
};

Result<Endpoint> parse_endpoint(const std::string& text) {
  const auto colon = text.rfind(':');
  const auto port =
      colon == std::string::npos ? std::nullopt : parse_int(std::string_view(text).substr(colon + 1));
  if (!port || *port < 1 || *port > 65535 || colon == 0) {
    return fail(ErrorCode::invalid_argument,
                "--master " + text + ": expected HOST:PORT, for example 10.0.0.1:7777");
  }
  return Endpoint{text.substr(0, colon), static_cast<std::uint16_t>(*port)};
}

// The variables that torchrun and Muster's runner both set.
struct LauncherSet {
  std::optional<int> rank, world, local_rank, local_world, node;
  std::optional<std::string> master_host;
  std::optional<int> master_port;
  bool torchrun = false;
  bool complete() const { return rank && world && local_rank && local_world && master_host && master_port; }
};

Result<LauncherSet> read_launcher_set(const Variables& variables) {
  LauncherSet set;
  MUSTER_TRY(set.rank, variable_int(variables, "RANK", 0));
  MUSTER_TRY(set.world, variable_int(variables, "WORLD_SIZE", 1));
  MUSTER_TRY(set.local_rank, variable_int(variables, "LOCAL_RANK", 0));
  MUSTER_TRY(set.local_world, variable_int(variables, "LOCAL_WORLD_SIZE", 1));
  MUSTER_TRY(set.node, variable_int(variables, "NODE_RANK", 0));
  MUSTER_TRY(set.master_port, variable_int(variables, "MASTER_PORT", 1));
  set.master_host = variables("MASTER_ADDR");
  // Only torchrun leaves this mark on its children; a runner's NODE_RANK is inherited by them too.
  set.torchrun = variables("TORCHELASTIC_RUN_ID").has_value() || !set.node;
  return set;
}

Result<RankPlace> torchrun_rank(const LauncherSet& set, const Variables& variables) {
  RankPlace place{.rank = *set.rank,
                  .world = *set.world,
                  .local_rank = *set.local_rank,
                  .local_world = *set.local_world,
                  .node = 0,
                  .store_host = *set.master_host,
                  .store_port = static_cast<std::uint16_t>(*set.master_port)};
  MUSTER_TRY(const auto group, variable_int(variables, "GROUP_RANK", 0));
  place.node = group.value_or(*set.rank / *set.local_world);
  place.epoch = variables("TORCHELASTIC_RUN_ID").value_or("") + "/" +
                variables("TORCHELASTIC_RESTART_COUNT").value_or("0");
  place.host_store = *set.rank == 0 && variables("TORCHELASTIC_USE_AGENT_STORE").value_or("False") != "True";
  if (place.rank >= place.world || place.local_rank >= place.local_world) {
    return fail(ErrorCode::invalid_argument,
                "RANK=" + std::to_string(place.rank) + " of WORLD_SIZE=" + std::to_string(place.world) +
                    ", LOCAL_RANK=" + std::to_string(place.local_rank) + " of LOCAL_WORLD_SIZE=" +
                    std::to_string(place.local_world) + ": a rank must be below its size");
  }
  return place;
}

struct ResourceFile {
  std::vector<std::string> hosts;
  std::string current;
  std::optional<int> index;
};

Result<ResourceFile> read_resources(std::string_view text) {
  ResourceFile file;
  if (text.empty()) return file;
  const auto object = json::parse_object(text);
  if (!object) return tl::unexpected(object.error().with_context("resourceconfig.json"));
  if (const auto* hosts = json::opt_array(*object, "hosts")) file.hosts = json::string_list(*hosts);
  file.current = json::opt_string(*object, "current_host").value_or("");
  const auto found = std::find(file.hosts.begin(), file.hosts.end(), file.current);
  if (found == file.hosts.end()) {
    return fail(ErrorCode::invalid_argument, "resourceconfig.json: current_host \"" + file.current +
                                                 "\" is not one of its " + std::to_string(file.hosts.size()) +
                                                 " hosts");
  }
  file.index = static_cast<int>(found - file.hosts.begin());
  return file;
}

// So many that numbers of ranks do not overflow.
constexpr int kRanksMost = 1024;  // on a node; of run.nproc, too
constexpr int kNodesMost = 1 << 16;

// With one process on the node (LOCAL_WORLD_SIZE 1) --nproc is free to start more ranks there.
Result<int> ranks_per_node(const LaunchFlags& flags, const LauncherSet& set) {
  if (flags.nproc && (*flags.nproc < 1 || *flags.nproc > kRanksMost)) {
    return fail(ErrorCode::invalid_argument, "--nproc " + std::to_string(*flags.nproc) +
                                                 ": a number from 1 to " + std::to_string(kRanksMost) +
                                                 " is needed, as many as the node has devices for");
  }
  const int started = set.node ? set.local_world.value_or(1) : 1;
  Fact<int> ranks("ranks on a node");
  MUSTER_CHECK(ranks.add(flags.nproc, "--nproc"));
  if (started > 1) MUSTER_CHECK(ranks.add(started, "LOCAL_WORLD_SIZE"));
  return ranks.value().value_or(1);
}

// torchrun may run inside of an srun; but who sets its variables by hand in one, means the same ranks.
Result<void> check_against_launcher(const LauncherSet& set, const Variables& variables) {
  if (variables("TORCHELASTIC_RUN_ID")) return {};
  MUSTER_TRY(const auto launched, read_launcher(variables));
  if (!launched) return {};
  Fact<int> world("number of ranks"), rank("number of this rank");
  MUSTER_CHECK(world.add(set.world, "WORLD_SIZE"));
  MUSTER_CHECK(world.add(launched->size, launched->size_name));
  MUSTER_CHECK(rank.add(set.rank, "RANK"));
  return rank.add(launched->rank, launched->rank_name);
}

// Where node 0 is, from whoever says it: a flag, MASTER_ADDR and MASTER_PORT, the launcher.
Result<std::optional<Endpoint>> find_master(const LaunchFlags& flags, const LauncherSet& set,
                                            const std::optional<Launched>& launched) {
  if (flags.master) {
    MUSTER_TRY(Endpoint master, parse_endpoint(*flags.master));
    return std::optional(std::move(master));
  }
  if (set.master_host && set.master_port)
    return std::optional(Endpoint{*set.master_host, static_cast<std::uint16_t>(*set.master_port)});
  return launched ? launched->master : std::optional<Endpoint>();
}

// A process that srun or mpirun started beside others on its node: a rank.
Result<RankPlace> launched_rank(const LaunchFlags& flags, const LauncherSet& set, const Launched& launched) {
  Fact<int> ranks("ranks on a node"), nodes("number of nodes"), node("number of this node"),
      world("number of ranks"), rank("number of this rank");
  MUSTER_CHECK(ranks.add(flags.nproc, "--nproc"));
  MUSTER_CHECK(ranks.add(launched.local_size, launched.local_size_name));
  MUSTER_CHECK(nodes.add(flags.nodes, "--nodes"));
  MUSTER_CHECK(nodes.add(launched.nodes(), launched.by));
  MUSTER_CHECK(node.add(flags.node_rank, "--node-rank"));
  MUSTER_CHECK(node.add(launched.node(), launched.by));
  MUSTER_CHECK(world.add(set.world, "WORLD_SIZE"));
  MUSTER_CHECK(world.add(launched.size, launched.size_name));
  MUSTER_CHECK(rank.add(set.rank, "RANK"));
  MUSTER_CHECK(rank.add(launched.rank, launched.rank_name));
  MUSTER_TRY(const auto master, find_master(flags, set, launched));
  if (!master) {
    return fail(
        ErrorCode::invalid_argument,
        "started by " + launched.by + " as rank " + std::to_string(launched.rank) + " of " +
            std::to_string(launched.size) +
            ", which does not tell where rank 0 is: give --master HOST:PORT (an address of its node and "
            "a free port there), or MASTER_ADDR and MASTER_PORT");
  }
  return RankPlace{.rank = launched.rank,
                   .world = launched.size,
                   .local_rank = launched.local_rank,
                   .local_world = launched.local_size,
                   .node = launched.node(),
                   .store_host = master->host,
                   .store_port = master->port,
                   .address = launched.nodes() == 1 ? master->host : "",
                   .epoch = launched.epoch,
                   .host_store = launched.rank == 0};
}

// The agent of a node.
Result<NodePlace> node_place(const LaunchFlags& flags, const LauncherSet& set,
                             const std::optional<Launched>& launched, const ResourceFile& file) {
  const bool runner = set.node && set.world && set.master_host && set.master_port;
  Fact<int> nodes("number of nodes"), index("number of this node");
  MUSTER_CHECK(nodes.add(flags.nodes, "--nodes"));
  MUSTER_CHECK(index.add(flags.node_rank, "--node-rank"));
  if (launched) {
    MUSTER_CHECK(nodes.add(launched->nodes(), launched->size_name));
    MUSTER_CHECK(index.add(launched->node(), launched->rank_name));
  }
  if (runner) {
    const int local = set.local_world.value_or(1);
    if (*set.world % local != 0) {
      return fail(ErrorCode::invalid_argument,
                  "WORLD_SIZE=" + std::to_string(*set.world) +
                      " is not a multiple of LOCAL_WORLD_SIZE=" + std::to_string(local));
    }
    MUSTER_CHECK(nodes.add(*set.world / local, "WORLD_SIZE / LOCAL_WORLD_SIZE"));
    MUSTER_CHECK(index.add(set.node, "NODE_RANK"));
  }
  if (file.index) {
    MUSTER_CHECK(nodes.add(static_cast<int>(file.hosts.size()), "resourceconfig.json"));
    MUSTER_CHECK(index.add(file.index, "resourceconfig.json"));
  }
  NodePlace node{
      .node = index.value().value_or(0), .nodes = nodes.value().value_or(1), .address = file.current};
  MUSTER_TRY(node.ranks, ranks_per_node(flags, set));
  if (node.nodes > kNodesMost) {
    return fail(ErrorCode::invalid_argument, std::to_string(node.nodes) + " nodes (" + nodes.source() +
                                                 "): at most " + std::to_string(kNodesMost) + " can be");
  }
  if (node.nodes < 1 || node.node < 0 || node.node >= node.nodes) {
    return fail(ErrorCode::invalid_argument, "node " + std::to_string(node.node) + " of " +
                                                 std::to_string(node.nodes) + " (" + nodes.source() +
                                                 "): nodes are numbered from 0");
  }
  MUSTER_TRY(auto master, find_master(flags, set, launched));
  if (!master && file.index) master = Endpoint{file.hosts.front(), kDefaultMasterPort};
  if (node.nodes == 1 && !flags.master) {  // no peers elsewhere: no name or port that another job may have
    master = Endpoint{"127.0.0.1", 0};
    node.address = "127.0.0.1";
  }
  if (!master) {
    return fail(ErrorCode::invalid_argument,
                std::to_string(node.nodes) + " nodes (" + nodes.source() +
                    ") need --master HOST:PORT (an address of node 0 and a free port there)" +
                    (index.value() ? "" : " and --node-rank") + " on every node");
  }
  node.master_host = master->host;
  node.master_port = master->port;
  return node;
}

}  // namespace

Result<Place> discover(const LaunchFlags& flags, const Variables& variables, std::string_view resources) {
  MUSTER_TRY(const LauncherSet set, read_launcher_set(variables));
  if (set.complete() && set.torchrun) {
    if (flags.nproc || flags.nodes || flags.node_rank || flags.master) {
      return fail(ErrorCode::invalid_argument,
                  "started by torchrun as rank " + std::to_string(*set.rank) + " of " +
                      std::to_string(*set.world) +
                      ", so --nproc, --nodes, --node-rank and --master have no meaning; leave them out");
    }
    MUSTER_CHECK(check_against_launcher(set, variables));
    MUSTER_TRY(RankPlace rank, torchrun_rank(set, variables));
    return Place{.rank = std::move(rank), .node = {}};
  }
  MUSTER_TRY(const auto launched, read_launcher(variables));
  if (launched && launched->local_size > 1) {
    MUSTER_TRY(RankPlace rank, launched_rank(flags, set, *launched));
    return Place{.rank = std::move(rank), .node = {}};
  }
  MUSTER_TRY(const ResourceFile file, read_resources(resources));
  MUSTER_TRY(NodePlace node, node_place(flags, set, launched, file));
  return Place{.rank = std::nullopt, .node = std::move(node)};
}

}  // namespace muster::train
