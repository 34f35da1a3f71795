#include "train/agent/discover.h"

#include <algorithm>
#include <vector>

#include "base/json.h"
#include "base/text.h"

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

Result<std::optional<int>> variable_int(const Variables& variables, std::string_view name, int minimum) {
  const auto text = variables(name);
  if (!text) return std::optional<int>();
  const auto value = parse_int(*text);
  if (!value || *value < minimum || *value > 1'000'000) {
    return fail(ErrorCode::invalid_argument, "environment variable " + std::string(name) + "=" + *text +
                                                 ": a whole number of at least " + std::to_string(minimum) +
                                                 " is needed");
  }
  return std::optional<int>(static_cast<int>(*value));
}

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
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

// Launchers that start one process a rank but are not read yet: two trainings side by side would be worse.
Result<void> refuse_unread_launchers(const Variables& variables, bool placed) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    MUSTER_TRY(const auto size, variable_int(variables, name, 0));
    if (size.value_or(1) > 1 && !placed) {
      return fail(ErrorCode::unsupported,
                  std::string(name) + "=" + std::to_string(*size) +
                      ": started by a launcher whose variables are not read; start one process "
                      "a node and give --nodes, --node-rank and --master");
    }
  }
  return {};
}

// With one process on the node (LOCAL_WORLD_SIZE 1) --nproc is free to start more ranks there.
Result<int> ranks_per_node(const LaunchFlags& flags, const LauncherSet& set) {
  if (flags.nproc && *flags.nproc < 1) {
    return fail(ErrorCode::invalid_argument,
                "--nproc " + std::to_string(*flags.nproc) + ": at least 1 is needed");
  }
  const int started = set.node ? set.local_world.value_or(1) : 1;
  if (flags.nproc && started > 1 && *flags.nproc != started) {
    return fail(ErrorCode::invalid_argument, "ranks on a node: --nproc says " + std::to_string(*flags.nproc) +
                                                 ", LOCAL_WORLD_SIZE says " + std::to_string(started) +
                                                 "; make them agree or drop one");
  }
  return flags.nproc.value_or(started);
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
    MUSTER_TRY(RankPlace rank, torchrun_rank(set, variables));
    return Place{.rank = std::move(rank), .node = {}};
  }
  const bool runner = set.node && set.world && set.master_host && set.master_port;
  MUSTER_TRY(const ResourceFile file, read_resources(resources));

  Fact<int> nodes("number of nodes");
  MUSTER_CHECK(nodes.add(flags.nodes, "--nodes"));
  if (runner) {
    const int local = set.local_world.value_or(1);
    if (*set.world % local != 0) {
      return fail(ErrorCode::invalid_argument,
                  "WORLD_SIZE=" + std::to_string(*set.world) +
                      " is not a multiple of LOCAL_WORLD_SIZE=" + std::to_string(local));
    }
    MUSTER_CHECK(nodes.add(*set.world / local, "WORLD_SIZE / LOCAL_WORLD_SIZE"));
  }
  if (file.index) MUSTER_CHECK(nodes.add(static_cast<int>(file.hosts.size()), "resourceconfig.json"));

  Place place;
  NodePlace& node = place.node;
  node.nodes = nodes.value().value_or(1);
  MUSTER_TRY(node.ranks, ranks_per_node(flags, set));
  node.address = file.current;
  if (runner) {
    node.node = *set.node;
    node.master_host = *set.master_host;
    node.master_port = static_cast<std::uint16_t>(*set.master_port);
  } else if (file.index) {
    node.node = *file.index;
    node.master_host = file.hosts.front();
    node.master_port = kDefaultMasterPort;
  }
  Fact<int> index("number of this node");
  MUSTER_CHECK(index.add(flags.node_rank, "--node-rank"));
  if (runner || file.index) MUSTER_CHECK(index.add(node.node, runner ? "NODE_RANK" : "resourceconfig.json"));
  node.node = index.value().value_or(0);
  if (flags.master) {
    MUSTER_TRY(const Endpoint master, parse_endpoint(*flags.master));
    node.master_host = master.host;
    node.master_port = master.port;
  }
  if (node.nodes == 1 && !flags.master) {  // no peers elsewhere: no name or port that another job may have
    node.master_host = node.address = "127.0.0.1";
    node.master_port = 0;
  }
  if (node.nodes < 1 || node.node < 0 || node.node >= node.nodes) {
    return fail(ErrorCode::invalid_argument, "node " + std::to_string(node.node) + " of " +
                                                 std::to_string(node.nodes) + " (" + nodes.source() +
                                                 "): nodes are numbered from 0");
  }
  if (node.nodes > 1 && node.master_port == 0) {
    return fail(ErrorCode::invalid_argument,
                "--nodes " + std::to_string(node.nodes) +
                    " needs --master HOST:PORT (an address of node 0 and a free port there) "
                    "and --node-rank on every node");
  }
  MUSTER_CHECK(refuse_unread_launchers(variables, flags.nodes || runner || file.index));
  return place;
}

}  // namespace muster::train
