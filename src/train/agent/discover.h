// Where a muster-train process stands: an agent of one node, or already a rank; and of how many.
//
// discover() is pure: flags, environment and resource file in, place out. Sources, in order:
//   1. flags --nproc, --nodes, --node-rank, --master
//   2. torchrun's variables, complete and of torchrun: the process is a rank
//   3. mpirun's and mpiexec's variables (OMPI_COMM_WORLD_*, PMI_*): ranks if there are several on a node,
//      else the agent of a node
//   4. srun's variables (SLURM_STEP_*): the same
//   5. NODE_RANK with MASTER_ADDR, MASTER_PORT, WORLD_SIZE, LOCAL_WORLD_SIZE, as Muster's runner sets them
//      for the one process it starts on a node: an agent
//   6. resourceconfig.json (hosts, current_host): an agent
//   7. nothing: one node
// Where rank 0 listens: --master, MASTER_ADDR and MASTER_PORT, or what the launcher tells (srun: the first
// host of the step and a port made from the step's number). What two sources say of the same thing must be
// equal, or both are shown and refused. See docs/adr/0025-where-a-rank-learns-its-place.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace muster::train {

struct LaunchFlags {
  std::optional<int> nproc;  // ranks on each node
  std::optional<int> nodes;
  std::optional<int> node_rank;
  std::optional<std::string> master;  // HOST:PORT of node 0
};

// The agent of one node.
struct NodePlace {
  int node = 0;
  int nodes = 1;
  int ranks = 1;  // on this node, as on every other
  std::string master_host = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0: any; only where there is one node
  std::string address = {};       // of this node, for its peers; empty: find one that leads to the master
};

struct RankPlace {
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  int local_world = 1;
  int node = 0;
  std::string store_host = "127.0.0.1";
  std::uint16_t store_port = 0;
  std::string address = {};  // empty: as in NodePlace
  std::string epoch = "0";   // differs between starts of one job, so that store keys do not meet
  bool host_store = false;   // this rank must host the store itself (no agent does)
};

struct Place {
  std::optional<RankPlace> rank;  // set: the process is a rank, `node` means nothing
  NodePlace node;
};

// A variable of the environment, or nullopt.
using Variables = std::function<std::optional<std::string>(std::string_view)>;

inline constexpr std::uint16_t kDefaultMasterPort = 7777;

// resources: the text of resourceconfig.json, empty if there is none. invalid_argument: what is given is
// incomplete, no number, out of its range, or two sources differ; the message names them.
Result<Place> discover(const LaunchFlags& flags, const Variables& variables, std::string_view resources);

}  // namespace muster::train
