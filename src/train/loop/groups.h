// The groups of ranks that one rank works in. All ranks of the world make them in the same order. One thread
// a rank uses all of them (Comm::subgroup).
#pragma once

#include <memory>
#include <vector>

#include "train/comm/comm.h"
#include "train/config/config.h"
#include "train/mesh/mesh.h"
#include "train/shard/data_parallel.h"
#include "train/shard/gather.h"

namespace muster::train {

struct Groups {
  Mesh mesh;
  std::unique_ptr<Comm> tp;       // other cuts of the same layers, the same part of the batch
  std::unique_ptr<Comm> shard;    // the same cut, other pieces of it, other parts of the batch
  std::unique_ptr<Comm> across;   // of `shard`, those of the same place on other nodes; null: gather is flat
  std::unique_ptr<Comm> within;   // of `shard`, those on the same node
  std::unique_ptr<Comm> replica;  // the same piece in other replicas
  std::unique_ptr<Comm> stages;   // this pipeline
  std::unique_ptr<Comm> tied;     // its first and last stage, if they are two that share an embedding

  GatherGroups gather() const { return {shard.get(), across.get(), within.get()}; }
  ReplicaGroups replicas() const { return {shard.get(), replica.get(), tied.get()}; }
};

// node_ranks: ranks on each node, 0 if that is not known. invalid_argument: config.gather is hierarchical and
// the shard groups do not tile the nodes.
Result<Groups> make_groups(const Config& config, const Mesh& mesh, Comm& world, int node_ranks);

}  // namespace muster::train
