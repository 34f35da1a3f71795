// What is looked at before the first step, so that a run does not fail at its end. Collective: every rank
// gets an error of any rank, in that rank's words.
#pragma once

#include "train/loop/trainer.h"

namespace muster::train {

// failed_precondition: configuration or data differ between the ranks, and how.
Result<void> check_agreement(const TrainerParts& parts);

// Folders that will be written to, and whether data.tokenizer is the one of the data.
Result<void> check_ends(const TrainerParts& parts);

}  // namespace muster::train
