#include "train/loop/model_folder.h"

#include <algorithm>

#include "train/hf/config_json.h"
#include "train/loop/memory.h"
#include "train/loop/state.h"

namespace muster::train {
namespace {

constexpr std::int64_t kWindow = 512;

Result<Reader> newest_step(const std::string& folder) {
  auto newest = latest_checkpoint(folder, OnDamage::refuse);
  if (!newest) {
    return fail(
        newest.error().code,
        newest.error().message + "; bring the file back, or remove that step to use the one before it");
  }
  if (!newest->reader) {
    return fail(ErrorCode::not_found,
                "no model in " + folder +
                    ": it has no finished step-N and no safetensors; give the folder that "
                    "training wrote as output.dir or checkpoint.dir, or a Hugging Face "
                    "model");
  }
  return std::move(*newest->reader);
}

}  // namespace

Result<ModelFolder> ModelFolder::open(const std::string& folder, std::optional<std::int64_t> step) {
  ModelFolder model;
  model.folder_ = folder;
  if (!step && hf::has_weights(folder)) {
    MUSTER_CHECK(model.open_hugging_face());
    return model;
  }
  MUSTER_TRY(Reader reader, step ? Reader::open(step_folder(folder, *step)) : newest_step(folder));
  MUSTER_CHECK(model.open_checkpoint(std::move(reader)));
  return model;
}

Result<void> ModelFolder::open_hugging_face() {
  MUSTER_TRY(config_.model, hf::read_config(folder_));
  config_.sequence = std::min(config_.model.max_sequence, kWindow);
  MUSTER_TRY(weights_, hf::Weights::open(folder_));
  MUSTER_CHECK(weights_->check(config_.model));
  MUSTER_TRY(tokenizer_, ModelTokenizer::find(folder_));
  return {};
}

Result<void> ModelFolder::open_checkpoint(Reader reader) {
  reader_ = std::move(reader);
  MUSTER_TRY(config_, from_json(reader_->info().config));
  const auto& tensors = reader_->info().tensors;
  const auto embedding = std::ranges::find(tensors, "model.embed_tokens.weight", &TensorInfo::name);
  if (embedding == tensors.end() || embedding->shape.size() != 2) {
    return fail(ErrorCode::corrupt, "the checkpoint in " + folder_ + " has no model.embed_tokens.weight");
  }
  config_.model.vocab = embedding->shape[0];
  MUSTER_TRY(config_.model, validated(config_.model));
  // A file may lie beside the steps; which tokenizer it has to be, they say.
  tokenizer_ = ModelTokenizer::named(folder_, reader_->info().tokenizer_hash);
  return check_tensors(*reader_, state_tensors(ParamTable(config_.model), Dtype::f32, false));
}

std::int64_t ModelFolder::step() const { return reader_ ? reader_->info().step : 0; }

Result<void> ModelFolder::read(const Slice& slice, std::span<float> out) {
  if (reader_) {
    MUSTER_CHECK(reader_->read(slice, std::as_writable_bytes(out)));
  } else {
    weights_->read(slice, out);
  }
  const auto finite = check_finite(slice.tensor, out);
  if (finite) return {};
  const std::string step = reader_ ? ", step " + std::to_string(this->step()) : "";
  return tl::unexpected(finite.error().with_context(folder_ + step));
}

Result<Model> ModelFolder::load(std::int64_t sequence, Dtype dtype) {
  ModelConfig config = config_.model;
  config.max_sequence = std::min(config.max_sequence, sequence);
  MUSTER_CHECK(check_memory_of_model(config, dtype));
  MUSTER_TRY(Model model, Model::create(config, {.dtype = dtype}));
  FlatBuffer& parameters = model.parameters();
  std::vector<float> values;
  for (const Param& param : model.table().params()) {
    const Slice slice = whole_slice(param.name, param.box);
    const Range range{param.offset, param.offset + param.numel};
    if (dtype == Dtype::f32) {
      MUSTER_CHECK(read(slice, parameters.as<float>(range)));
    } else {
      values.resize(static_cast<std::size_t>(param.numel));
      MUSTER_CHECK(read(slice, values));
      std::ranges::copy(values, parameters.as<double>(range).begin());
    }
  }
  return model;
}

}  // namespace muster::train
