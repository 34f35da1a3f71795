// The durable state of a training run as checkpoint tensors: parameters and the two moments of AdamW, by the
// names of the parameter table. Nothing in it depends on how many ranks wrote it. Any thread; a model or a
// folder is for one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "train/ckpt/checkpoint.h"
#include "train/config/config.h"
#include "train/model/model.h"
#include "train/optim/adamw.h"

namespace muster::train {

// The global tensors of a checkpoint; without an optimizer, those of a finished model.
std::vector<TensorInfo> state_tensors(const ParamTable& table, Dtype dtype, bool with_optimizer);

// The slices of them that lie in `range` of the flat parameters and that this part of the model owns.
// `optimizer` may be null; else it must own that range. They point into the buffers.
std::vector<TensorSlice> state_slices(const Model& model, const AdamW* optimizer, Range range);

// Reads parameters, and if `optimizer` is not null the moments of the range that it owns. corrupt or
// failed_precondition if names or shapes do not fit the model.
Result<void> restore_state(Reader& reader, Model& model, AdamW* optimizer);

// A model as `train` leaves it (output.dir) or a folder of checkpoints (the newest one), for eval and
// generate.
struct LoadedModel {
  Model model;
  Config config;
  std::int64_t step = 0;
  std::string tokenizer_hash;
};
Result<LoadedModel> load_model(const std::string& folder);

// Writes the finished model into `folder`: config.json, tokenizer.model if there is one, step-N without
// optimizer state, and no other step. Called by the ranks of `copy`, which together hold the model once.
Result<void> write_model(const std::string& folder, const Model& model, const Config& config,
                         const CheckpointInfo& info, const Writer& writer, Comm& copy);

}  // namespace muster::train
