// Training that starts from the weights of a Hugging Face folder (model.from). One thread a rank.
#pragma once

#include <string>

#include "train/comm/comm.h"
#include "train/model/flat_buffer.h"
#include "train/model/params.h"

namespace muster::train {

// Collective over all ranks of a training: fills `weights` from a Hugging Face folder. Every rank reads what
// its buffer holds, in a folder of its node. failed_precondition: another model, a tokenizer other than the
// data's, or the ranks see different weights.
Result<void> load_pretrained(const std::string& folder, const std::string& tokenizer_hash,
                             const ParamTable& table, FlatBuffer& weights, Comm& comm);

}  // namespace muster::train
