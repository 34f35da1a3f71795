// The arithmetic of one token, forward and backward, by the usual rule: 6 x matrix parameters, and attention
// counted in full. Pure.
#pragma once

#include "train/model/params.h"

namespace muster::train {

struct FlopPerToken {
  double layer = 0;  // each
  double head = 0;   // logits and their gradients
  double whole = 0;  // the model
};
FlopPerToken flop_per_token(const ModelConfig& config, std::int64_t sequence);

}  // namespace muster::train
