// The exchanges between replicas that end a step: the gradient is summed over them, the owners update, and
// what they hold is whole again.
//
//   zero = false  the gradient is summed on every replica, and every replica updates all it holds
//   zero = true   it is summed where it is owned, the owner updates, and the parameters are gathered again
//                 (ZeRO-1): the same bytes on the wire, 1 / n of the optimizer's state, the same bits
//
// Here too a tied embedding becomes one over the pipeline: the first stage adds what the head's copy on the
// last stage collected, updates, and sends it the new values. All ranks make the same calls. One thread.
#pragma once

#include <vector>

#include "train/comm/comm.h"
#include "train/model/flat_buffer.h"
#include "train/shard/placement.h"

namespace muster::train {

struct ReplicaGroups {
  Comm* shard = nullptr;    // the ranks that share one copy of this part of the model
  Comm* replica = nullptr;  // those that hold the same piece of it
  Comm* tied = nullptr;     // first and last stage of this pipeline, if a tied head is on another stage
};

class DataParallel {
 public:
  // `table` and the groups must outlive this.
  DataParallel(const ParamTable& table, const ShardPlace& place, const ReplicaGroups& groups);

  const Placement& placement() const { return placement_; }

  // Sums the gradients over the replicas, in their order; a tied head's is folded in. Valid in
  // placement().owned() afterwards.
  Result<void> reduce(FlatBuffer& gradients);

  // Of the reduced gradients, block_squares() of all that the ranks of `shard` and `replica` own: the same
  // bits on each of them and for every sharding.
  Result<std::vector<double>> squares(const FlatBuffer& gradients);

  // After the update of placement().owned(): what is held is whole again.
  Result<void> gather(FlatBuffer& parameters);

 private:
  template <typename T>
  Result<void> reduce(FlatBuffer& gradients);
  template <typename T>
  Result<void> fold_tied(FlatBuffer& gradients);

  const ParamTable& table_;
  const ReplicaGroups groups_;
  const Placement placement_;
  const bool zero_;
  FlatBuffer head_;  // a tied head's gradient, from the last stage
};

}  // namespace muster::train
