// A model in a folder, whoever wrote it: Muster (step-N in it: an output.dir or a checkpoint.dir) or Hugging
// Face (config.json and safetensors). eval, generate and logits use it, export rewrites it (write_model.h).
// One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "train/ckpt/checkpoint.h"
#include "train/config/config.h"
#include "train/hf/weights.h"
#include "train/loop/model_tokenizer.h"
#include "train/model/model.h"

namespace muster::train {

class ModelFolder {
 public:
  // Where there are safetensors, those; else the newest step of Muster's. With `step`: that one. not_found:
  // there is no model; corrupt, unsupported, failed_precondition: what is wrong with it.
  static Result<ModelFolder> open(const std::string& folder, std::optional<std::int64_t> step = {});

  const ModelConfig& model() const { return config_.model; }
  // That of the training; of a Hugging Face folder the defaults, with its model and a window of at most 512.
  const Config& config() const { return config_; }
  std::int64_t step() const;  // 0 where nobody counted

  const std::string& path() const { return folder_; }
  const ModelTokenizer& tokenizer() const { return tokenizer_; }

  // Elements of a parameter, by its global name. Errors of check_finite() (state.h), too.
  Result<void> read(const Slice& slice, std::span<float> out);

  // The model, all of whose weights are finite, for texts of up to `sequence` tokens or its own limit if that
  // is lower.
  Result<Model> load(std::int64_t sequence, Dtype dtype = Dtype::f32);

 private:
  Result<void> open_checkpoint(Reader reader);
  Result<void> open_hugging_face();

  std::string folder_;
  Config config_;
  std::optional<Reader> reader_;        // Muster's
  std::optional<hf::Weights> weights_;  // Hugging Face's
  ModelTokenizer tokenizer_;
};

}  // namespace muster::train
