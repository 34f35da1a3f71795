// Where a run begins: at the newest checkpoint of checkpoint.dir, at the weights of model.from, or at weights
// drawn from train.seed. Collective: all ranks begin at the same place or get the same error. One thread a
// rank.
#pragma once

#include <optional>

#include "base/file.h"
#include "train/loop/stepper.h"
#include "train/loop/trainer.h"

namespace muster::train {

// What a run has of its checkpoint.dir until it ends.
struct CheckpointDir {
  bool is_new = false;                // was not there, where rank 0 is
  std::optional<FileLock> lock = {};  // rank 0's
};

// Collective: makes checkpoint.dir if need be, and takes it for this run. Without one nothing is done.
// failed_precondition: another run has it; invalid_argument: there is not even a folder to make it in, or
// checkpoint.resume = required and it is not set; not_found: required, and it is not there.
Result<CheckpointDir> open_checkpoint_dir(const TrainerParts& parts);

enum class Begin { at_checkpoint, anew };

// Fills `stepper`. That there is no checkpoint is said aloud.
// failed_precondition: the checkpoint is of another run, or the ranks see different ones; corrupt: it is
// damaged; not_found: checkpoint.resume requires one and there is none.
Result<Begin> resume_or_begin(const TrainerParts& parts, const CheckpointDir& dir, Stepper& stepper);

}  // namespace muster::train
