// What is looked at before the first step, so that a run does not fail at its end. Collective, but where
// said: every rank gets an error of any rank, in that rank's words. One thread a rank.
#pragma once

#include "train/loop/trainer.h"

namespace muster::train {

// failed_precondition: configuration or data differ between the ranks, and how.
Result<void> check_agreement(const TrainerParts& parts);

// output.dir, which will be written to at the end: that it can be, and that no checkpoint would be lost by
// it; and whether data.tokenizer is the one of the data.
Result<void> check_ends(const TrainerParts& parts);

// A folder that will be written to much later: an unusable one should end the run before its first step.
// Makes it if need be. Errors name the key. Not collective.
Result<void> check_writable(const std::string& key, const std::string& folder, int rank);

}  // namespace muster::train
