// Rewrites a checkpoint for another number of ranks, or without some of its tensors: no job, no model, memory
// for one piece. Any thread; a Reader is for one at a time.
#pragma once

#include <string>

#include "train/ckpt/checkpoint.h"

namespace muster::train {

struct ConvertOptions {
  int ranks = 1;              // files of tensors; at least 1
  bool weights_only = false;  // without the optimizer's state
  Progress progress = {};
};

// Writes folder/step-N; it counts only when it is whole, and what a failure leaves is removed. Every block
// read is checked. already_exists: there is such a step; else as Reader::read().
Result<void> convert_checkpoint(Reader& from, const std::string& folder, const ConvertOptions& options);

}  // namespace muster::train
