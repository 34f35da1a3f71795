// A model in a folder, whoever wrote it: Muster (step-N in it: an output.dir or a checkpoint.dir) or Hugging
// Face (config.json and safetensors). Training starts from it, eval and generate use it, export rewrites it.
// One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/ckpt/checkpoint.h"
#include "train/config/config.h"
#include "train/hf/export.h"
#include "train/hf/weights.h"
#include "train/model/model.h"

namespace muster::train {

class ModelFolder {
 public:
  // not_found: there is no model; corrupt, unsupported, failed_precondition: what is wrong with it. The
  // newest step of Muster's; where there are safetensors, those.
  static Result<ModelFolder> open(const std::string& folder);

  const ModelConfig& model() const { return config_.model; }
  // That of the training; of a Hugging Face folder the defaults, with its model and a window of at most 512.
  const Config& config() const { return config_; }
  std::int64_t step() const;  // 0 where nobody counted

  // failed_precondition unless token ids by the tokenizer of this hash (SHA-256 of its file) are the model's;
  // `what` names what is tokenized with it. A folder that has no tokenizer takes any.
  Result<void> check_tokenizer(const std::string& hash, const std::string& what) const;
  // The tokenizer's file in the folder, not_found if there is none.
  Result<std::string> tokenizer_file() const;

  // Elements of a parameter, by its global name.
  Result<void> read(const Slice& slice, std::span<float> out);

  // The model, for texts of up to `sequence` tokens or its own limit if that is lower.
  Result<Model> load(std::int64_t sequence, Dtype dtype = Dtype::f32);

  // Writes a Hugging Face folder: config.json, safetensors, and the tokenizer and settings beside the model
  // (of a checkpoint.dir: what its configuration names, where it still is; left out otherwise).
  Result<hf::Written> write_to(const std::string& folder, const hf::WriteOptions& options);

 private:
  Result<void> open_checkpoint();
  Result<void> open_hugging_face();

  std::string folder_;
  Config config_;
  std::optional<Reader> reader_;        // Muster's
  std::optional<hf::Weights> weights_;  // Hugging Face's
  std::vector<std::string> tokenizer_hashes_;
};

// Collective over all ranks of a training: fills `weights` from a Hugging Face folder. Every rank reads what
// its buffer holds, in a folder of its node. failed_precondition: another model, a tokenizer other than the
// data's, or the ranks see different weights.
Result<void> load_pretrained(const std::string& folder, const std::string& tokenizer_hash,
                             const ParamTable& table, FlatBuffer& weights, Comm& comm);

// Writes the finished model into `folder`: config.json, the tokenizer if there is one (data.tokenizer; what
// lies in model.from), step-N without optimizer state, and no other step. Collective over `comm`, whose
// ranks' slices are together all tensors of `info` once: its rank 0 writes all of it, into its own folder on
// node `node`; no other rank needs one.
Result<void> write_model(const std::string& folder, const Config& config, const CheckpointInfo& info,
                         std::span<const TensorSlice> slices, int node, Comm& comm);

}  // namespace muster::train
