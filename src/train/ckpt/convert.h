// Rewrites a checkpoint for another number of ranks, or without some of its tensors: no job, no model, memory
// for one piece. Any thread; a Reader is for one at a time.
#pragma once

#include <string>

#include "train/ckpt/checkpoint.h"

namespace muster::train {

// A file each, synced to the disk each. More than the largest clusters have; any number of ranks reads them.
inline constexpr int kConvertRanksMax = 4096;
// Of all tensors in all files: the manifest names each, and a reader holds it in memory.
inline constexpr std::uint64_t kConvertSlicesMax = 1u << 20;

struct ConvertOptions {
  int ranks = 1;              // files of tensors; 1 to kConvertRanksMax
  bool weights_only = false;  // without the optimizer's state
  Progress progress = {};
};

// Writes folder/step-N; it counts only when it is whole, and what a failure leaves is removed. Every block
// read is checked. already_exists: there is such a step; invalid_argument: too many ranks for so many
// tensors; invalid_argument, too: `folder` is in a step of checkpoints;
// failed_precondition: a training writes into `folder`; else as Reader::read().
Result<void> convert_checkpoint(Reader& from, const std::string& folder, const ConvertOptions& options);

}  // namespace muster::train
