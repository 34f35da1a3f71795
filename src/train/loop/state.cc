#include "train/loop/state.h"

#include <algorithm>

#include "base/file.h"
#include "train/hf/config_json.h"

namespace muster::train {
namespace {

constexpr char kFirstMoment[] = "optimizer.first_moment.";
constexpr char kSecondMoment[] = "optimizer.second_moment.";

const char* dtype_name(Dtype dtype) { return dtype == Dtype::f32 ? "F32" : "F64"; }

// Elements `range` of the flat parameters as slices of tensors named with `prefix`; of those, `take` is told
// the parameter, the slice and where it lies, counted from element `origin`.
template <typename Take>
Result<void> for_slices(const ParamTable& table, const std::string& prefix, Range range, std::int64_t origin,
                        Take take) {
  for (const Param& param : table.params()) {
    const Range part{std::max(range.begin, param.offset), std::min(range.end, param.offset + param.numel)};
    if (part.begin >= part.end) continue;
    const Slice slice{prefix + param.name, param.box, {part.begin - param.offset, part.end - param.offset}};
    MUSTER_CHECK(take(param, slice, Range{part.begin - origin, part.end - origin}));
  }
  return {};
}

void append_slices(const ParamTable& table, const FlatBuffer& buffer, const std::string& prefix, Range range,
                   std::int64_t origin, std::vector<TensorSlice>& out) {
  const auto append = [&](const Param& param, const Slice& slice, Range where) -> Result<void> {
    if (table.owns(param)) out.push_back({slice, buffer.bytes(where)});
    return {};
  };
  static_cast<void>(for_slices(table, prefix, range, origin, append));
}

Result<void> read_range(Reader& reader, const ParamTable& table, const std::string& prefix, Range range,
                        std::int64_t origin, FlatBuffer& buffer) {
  return for_slices(table, prefix, range, origin, [&](const Param&, const Slice& slice, Range where) {
    return reader.read(slice, buffer.bytes(where));
  });
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

json::Object model_json(const ModelConfig& model, const CheckpointInfo& info) {
  json::Object config = hf::to_config(model);
  config["torch_dtype"] = "float32";
  config["muster"] =
      json::Object{{"step", info.step}, {"tokenizer_sha256", info.tokenizer_hash}, {"config", info.config}};
  return config;
}

}  // namespace

std::vector<TensorInfo> state_tensors(const ParamTable& table, Dtype dtype, bool with_optimizer) {
  const ParamTable whole(table.config());
  std::vector<TensorInfo> tensors;
  for (const std::string& prefix : {std::string(), std::string(kFirstMoment), std::string(kSecondMoment)}) {
    for (const Param& param : whole.params())
      tensors.push_back({prefix + param.name, dtype_name(dtype), param.shape});
    if (!with_optimizer) break;
  }
  return tensors;
}

std::vector<TensorSlice> state_slices(const Model& model, const AdamW* optimizer, Range range) {
  const ParamTable& table = model.table();
  std::vector<TensorSlice> slices;
  append_slices(table, model.parameters(), "", range, 0, slices);
  if (optimizer != nullptr) {
    const std::int64_t origin = optimizer->range().begin;
    append_slices(table, optimizer->first_moment(), kFirstMoment, range, origin, slices);
    append_slices(table, optimizer->second_moment(), kSecondMoment, range, origin, slices);
  }
  return slices;
}

Result<void> restore_state(Reader& reader, Model& model, AdamW* optimizer) {
  const ParamTable& table = model.table();
  const auto& stored = reader.info().tensors;
  for (const TensorInfo& wanted : state_tensors(table, model.dtype(), optimizer != nullptr)) {
    const auto found =
        std::find_if(stored.begin(), stored.end(), [&](const auto& t) { return t.name == wanted.name; });
    if (found == stored.end()) {
      return fail(ErrorCode::failed_precondition, "the checkpoint has no tensor " + wanted.name);
    }
    if (*found != wanted) {
      return fail(ErrorCode::failed_precondition, "tensor " + wanted.name + " is " + found->dtype + " " +
                                                      shape_text(found->shape) + " in the checkpoint, " +
                                                      wanted.dtype + " " + shape_text(wanted.shape) +
                                                      " in this model");
    }
  }
  MUSTER_CHECK(read_range(reader, table, "", {0, table.numel()}, 0, model.parameters()));
  if (optimizer == nullptr) return {};
  const Range owned = optimizer->range();
  MUSTER_CHECK(read_range(reader, table, kFirstMoment, owned, owned.begin, optimizer->first_moment()));
  MUSTER_CHECK(read_range(reader, table, kSecondMoment, owned, owned.begin, optimizer->second_moment()));
  optimizer->set_steps(reader.info().step);
  return {};
}

Result<LoadedModel> load_model(const std::string& folder) {
  auto newest = latest_checkpoint(folder, OnDamage::refuse);
  if (!newest) {
    return fail(
        newest.error().code,
        newest.error().message + "; bring the file back, or remove that step to use the one before it");
  }
  Latest latest = *std::move(newest);
  if (!latest.reader) {
    return fail(ErrorCode::not_found, "no model in " + folder +
                                          ": it has no finished step-N; give the folder that "
                                          "training wrote as output.dir or checkpoint.dir");
  }
  Reader& reader = *latest.reader;
  MUSTER_TRY(Config config, from_json(reader.info().config));
  const auto& tensors = reader.info().tensors;
  const auto embedding = std::find_if(tensors.begin(), tensors.end(),
                                      [](const auto& t) { return t.name == "model.embed_tokens.weight"; });
  if (embedding == tensors.end() || embedding->shape.size() != 2) {
    return fail(ErrorCode::corrupt, "the checkpoint in " + folder + " has no model.embed_tokens.weight");
  }
  config.model.vocab = embedding->shape[0];
  MUSTER_TRY(config.model, validated(config.model));
  MUSTER_TRY(Model model, Model::create(config.model));
  MUSTER_CHECK(restore_state(reader, model, nullptr));
  return LoadedModel{std::move(model), std::move(config), reader.info().step, reader.info().tokenizer_hash};
}

Result<void> write_model(const std::string& folder, const Model& model, const Config& config,
                         const CheckpointInfo& info, const Writer& writer, Comm& copy) {
  const auto describe = [&]() -> Result<void> {
    if (copy.rank() != 0) return {};
    MUSTER_CHECK(make_directories(folder));
    MUSTER_CHECK(write_file_atomic(folder + "/config.json",
                                   json::pretty(model_json(model.table().config(), info)) + "\n"));
    if (config.tokenizer.empty()) return {};
    MUSTER_TRY(const std::string tokenizer, read_file(config.tokenizer));
    return write_file_atomic(folder + "/tokenizer.model", tokenizer);
  };
  const auto described = describe();
  CheckpointInfo weights = info;
  weights.tensors = state_tensors(model.table(), model.dtype(), false);
  const auto slices = state_slices(model, nullptr, {0, model.table().numel()});
  MUSTER_CHECK(save_checkpoint(folder, weights, slices, writer, copy));
  MUSTER_CHECK(described);
  return copy.rank() == 0 ? remove_checkpoints(folder, {info.step}, INT64_MAX) : Result<void>{};
}

}  // namespace muster::train
