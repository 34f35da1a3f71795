// A checkpoint that rank 0 writes alone, for ranks that share no folder: a finished model, which has to be
// whole where it is taken from. Checkpoints of a run are written by all ranks (saver.h), n times as fast.
//
// Format and reading are the same: a rank's slices become its rank-R.bin, all of them in rank 0's folder. In
// each round every rank sends one piece, so nobody waits longer than a round takes, and rank 0 needs memory
// for one round, whatever the size of the model. One thread a rank.
#pragma once

#include "train/ckpt/checkpoint.h"

namespace muster::train {

inline constexpr std::uint64_t kRoundBytes = 64u << 20;  // of all ranks together

// Writes folder/step-N at rank 0, on node `node`, and returns when it counts; the other ranks only send, and
// their `folder` and `node` are not looked at. Collective: every rank gives its slices; together they must
// cover every tensor once. The same outcome on every rank; errors of writing name rank 0's file, and
// what was written is taken back. round_bytes
// is the same on all ranks.
Result<void> save_gathered(const std::string& folder, const CheckpointInfo& info,
                           std::span<const TensorSlice> mine, int node, Comm& comm,
                           std::uint64_t round_bytes = kRoundBytes);

}  // namespace muster::train
