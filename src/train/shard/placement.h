// Which elements of the flat layout (ParamTable) a rank holds, updates and saves.
//
//   shard     the ranks of a shard group hold a piece of every unit each (ZeRO-3: Rajbhandari et al., 2020;
//             over a part of the ranks, MiCS: Zhang et al., 2022). Units are gathered for the time that they
//             are computed with.
//   replica   each shard group is one copy of the model; replicas compute other parts of the batch. With
//             `zero` a rank updates, and has optimizer state for, its part of what it holds only (ZeRO-1).
//
// Every unit is cut by itself, at ParamTable::blocks(), so no layout changes the sums over blocks, and a tied
// embedding is cut in the same way on the first and the last pipeline stage. Pure; any thread.
#pragma once

#include <vector>

#include "train/model/params.h"

namespace muster::train {

// `range`, whose ends are block ends, in `parts` ranges of about equal size, one behind the other. More parts
// than blocks: some are empty.
std::vector<Range> cut_at_blocks(const ParamTable& table, Range range, int parts);

// Whether shards of this size hold the same pieces of what tensor parallelism does not cut (the norms) on all
// cuts of these layers: as long as a norm lies in one shard, or the cuts are equal. Under sequence
// parallelism the cuts sum these gradients piece by piece.
bool same_norm_pieces(const ModelConfig& config, Range layers, int tp, int shards);

struct ShardPlace {
  int shards = 1, shard = 0;
  int replicas = 1, replica = 0;
  bool zero = false;
};

// A run of elements that several ranks share: `parts` cut it, one a rank, counted from its beginning.
struct SharedRun {
  Range range;
  std::vector<Range> parts;
  Range part(int rank) const {
    const Range& of = parts[static_cast<std::size_t>(rank)];
    return {range.begin + of.begin, range.begin + of.end};
  }
};

class Placement {
 public:
  Placement(const ParamTable& table, const ShardPlace& place);

  // Parameters and gradients between steps; all pieces in order. The gradient of a tied head lies behind the
  // parameters (ParamTable::gradient_numel) and is held by who holds the embedding's.
  const std::vector<Range>& held() const { return held_; }
  const std::vector<Range>& gradients() const { return gradients_; }
  // What it updates: where it has the gradient summed over all replicas, but for the copy of a tied
  // embedding, which the first stage updates.
  const std::vector<Range>& owned() const { return owned_; }
  // What it writes to a checkpoint; together the ranks write everything once, the copy aside.
  const std::vector<Range>& written() const { return written_; }
  // Where it has the summed gradient of the embedding, or of its copy: cut alike on both stages.
  const std::vector<Range>& tied() const { return tied_; }

  // A unit of the table, or the tail, over the shard group.
  SharedRun unit(Range unit) const;
  // What the replicas of this rank's place in the shard group hold all of them: runs of gradients() cut over
  // the replicas. Those of parameters alone come first.
  const std::vector<SharedRun>& replicated() const { return replicated_; }
  std::size_t parameter_runs() const { return parameter_runs_; }

 private:
  const ParamTable* table_;
  ShardPlace place_;
  std::vector<Range> held_, gradients_, owned_, written_, tied_;
  std::vector<SharedRun> replicated_;
  std::size_t parameter_runs_ = 0;
};

}  // namespace muster::train
