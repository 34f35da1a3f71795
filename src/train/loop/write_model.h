// Models that are written: by a training at its end, and by export. What lies beside the weights: config.json
// and the tokenizer. One thread a rank.
#pragma once

#include <span>
#include <string>

#include "train/ckpt/checkpoint.h"
#include "train/config/config.h"
#include "train/hf/export.h"
#include "train/loop/model_folder.h"

namespace muster::train {

// failed_precondition: `folder`, where a finished model is to go (output.dir), has a step of a training: one
// with optimizer state, or one that cannot be read. Steps of weights alone are finished models, which a new
// one replaces. Not collective.
Result<void> check_replaceable(const std::string& folder);

// Writes the finished model into `folder`: config.json, the tokenizer if there is one (data.tokenizer; what
// lies in model.from), step-N without optimizer state; finished models of other steps go. Collective over
// `comm`, whose ranks' slices are together all tensors of `info` once: its rank 0 writes all of it, into its
// own folder on node `node`; no other rank needs one. The same outcome on all ranks. Errors as
// check_replaceable(), which it asks again: then nothing is touched.
Result<void> write_model(const std::string& folder, const Config& config, const CheckpointInfo& info,
                         std::span<const TensorSlice> slices, int node, Comm& comm);

// Writes a Hugging Face folder: config.json, safetensors, and the tokenizer and settings beside the model
// (of a checkpoint.dir: what its configuration names, where it still is; left out otherwise).
Result<hf::Written> export_model(ModelFolder& model, const std::string& folder,
                                 const hf::WriteOptions& options);

}  // namespace muster::train
