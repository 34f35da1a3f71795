// What mpirun, mpiexec and srun tell the processes that they start, read from their variables. Internal to
// agent. Pure functions: any thread.
//
// Open MPI: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}. Hydra (MPICH, Intel MPI): PMI_RANK, PMI_SIZE,
// MPI_LOCALRANKID, MPI_LOCALNRANKS. Slurm: SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID and SLURM_STEP_*, which
// only srun sets: in a batch script or an allocation's shell nothing has been started yet.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "train/agent/discover.h"

namespace muster::train {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};

// One of `size` processes, `local_size` of them on each node, ranks node by node.
struct Launched {
  std::string by;  // "srun", "mpirun"
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node() const { return rank / local_size; }
  int nodes() const { return size / local_size; }
  std::string rank_name, size_name, local_size_name;  // of the variables, for messages
  std::optional<Endpoint> master = {};                // where rank 0 is, if it can be known
  std::string epoch;                                  // of this start, may be empty
};

// nullopt: none of them, or it started this process alone. invalid_argument: variables that are missing or
// no numbers, nodes with different numbers of ranks, ranks that are not node by node.
Result<std::optional<Launched>> read_launcher(const Variables& variables);

// A whole number of at least `minimum`, or nullopt if the variable is not set.
Result<std::optional<int>> variable_int(const Variables& variables, std::string_view name, int minimum);

// The first host of a list as Slurm writes it: "node[001-004,7],login" -> "node001".
std::string first_host(std::string_view nodelist);

}  // namespace muster::train
