// The durable state of a training run as checkpoint tensors: parameters and the two moments of AdamW, by the
// names of the parameter table. Nothing in it depends on how many ranks wrote it. Any thread; a model or a
// folder is for one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "train/ckpt/checkpoint.h"
#include "train/hf/weights.h"
#include "train/model/model.h"
#include "train/optim/adamw.h"

namespace muster::train {

// The global tensors of a checkpoint; without an optimizer, those of a finished model.
std::vector<TensorInfo> state_tensors(const ParamTable& table, Dtype dtype, bool with_optimizer);

// The slices of them that lie in `pieces` of the flat parameters and that this part of the model owns.
// `optimizer` may be null; else it must own those pieces. They point into the buffers.
std::vector<TensorSlice> state_slices(const Model& model, const AdamW* optimizer,
                                      std::span<const Range> pieces);

// Reads the parameters held, and if `optimizer` is not null the moments of what it owns. corrupt or
// failed_precondition if names or shapes do not fit the model.
Result<void> restore_state(Reader& reader, Model& model, AdamW* optimizer);

// failed_precondition: a wanted tensor is not in the checkpoint, or has another type or shape there.
Result<void> check_tensors(const Reader& reader, const std::vector<TensorInfo>& wanted);

// The parameters that the model holds, out of a Hugging Face folder that has passed check() for it.
void read_weights(const hf::Weights& weights, Model& model);

}  // namespace muster::train
