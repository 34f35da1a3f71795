// Weights of which a rank holds a piece of each unit (ZeRO-3, MiCS). Acquiring a unit gathers it in the shard
// group; the gradient of a micro-batch is reduce-scattered there when the unit's backward is done, and added
// to what this rank holds. The replicas are summed once a step, by DataParallel: the two hops of MiCS.
//
// Room for the units at work is kept and used again: the largest that are in use at once. One thread.
#pragma once

#include <list>

#include "train/model/weights.h"
#include "train/shard/gather.h"
#include "train/shard/placement.h"

namespace muster::train {

class ShardedWeights final : public Weights {
 public:
  // `place.shard` is this rank's rank in groups.all. The groups must outlive this.
  ShardedWeights(ParamTable table, Dtype dtype, const ShardPlace& place, const GatherGroups& groups);

  std::byte* acquire(Range unit) override;
  void release(Range unit) override;
  Gradient gradient(Range unit) override;
  void reduce(Range unit) override;
  Result<void> status() const override { return status_; }

 private:
  struct Room {
    FlatBuffer buffer;
    Range unit{-1, -1};  // -1: free
    bool of_gradient = false;
  };
  ShardedWeights(ParamTable table, Dtype dtype, const ShardPlace& place, const GatherGroups& groups,
                 const Placement& placement);
  Room& take(Range unit, bool of_gradient);  // of the parameters' type, or the gradients'
  Room& find(Range unit, bool of_gradient);
  template <typename T>
  void reduce(Range unit, Room& room);

  const Placement placement_;
  const GatherGroups groups_;
  const int shard_;
  std::list<Room> rooms_;
  Result<void> status_;
};

}  // namespace muster::train
