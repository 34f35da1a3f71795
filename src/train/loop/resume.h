// Where a run begins: at the newest checkpoint of checkpoint.dir, at the weights of model.from, or at weights
// drawn from train.seed. Collective: all ranks begin at the same place or get the same error. One thread a
// rank.
#pragma once

#include "train/loop/stepper.h"
#include "train/loop/trainer.h"

namespace muster::train {

enum class Begin { at_checkpoint, anew };

// Fills `stepper`, and makes checkpoint.dir if need be. That there is no checkpoint is said aloud.
// failed_precondition: the checkpoint is of another run, or the ranks see different ones; corrupt: it is
// damaged; not_found: checkpoint.resume requires one and there is none; invalid_argument: there is not even a
// folder to make checkpoint.dir in.
Result<Begin> resume_or_begin(const TrainerParts& parts, Stepper& stepper);

}  // namespace muster::train
