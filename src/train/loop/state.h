// The durable state of a training run as checkpoint tensors: weights and the two moments of AdamW, by the
// names of the parameter table; in fp32, also where the model computes in bf16. Nothing in it depends on how
// many ranks wrote it. Any thread; a model or a folder is for one thread at a time.
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
// weights: AdamW::weights(). `moments` may be null; else it must own those pieces. They point into the
// buffers.
std::vector<TensorSlice> state_slices(const ParamTable& table, const FlatBuffer& weights,
                                      const AdamW* moments, std::span<const Range> pieces);

// Reads what the buffer `weights` holds, which is AdamW::weights(), and the moments of what the optimizer
// owns. corrupt or failed_precondition if names or shapes do not fit the model.
Result<void> restore_state(Reader& reader, const ParamTable& table, FlatBuffer& weights, AdamW& optimizer);

// failed_precondition: a wanted tensor is not in the checkpoint, or has another type or shape there.
Result<void> check_tensors(const Reader& reader, const std::vector<TensorInfo>& wanted);

// failed_precondition: one of the weights of a model that is about to be used is not a number, or infinite.
Result<void> check_finite(std::string_view tensor, std::span<const float> weights);

// The parameters that the buffer, fp32 or fp64, holds, out of a Hugging Face folder that has passed check()
// for the model. Errors of check_finite().
Result<void> read_weights(const hf::Weights& from, const ParamTable& table, FlatBuffer& weights);

}  // namespace muster::train
