#include "train/loop/write_model.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "text/tokenizer.h"
#include "train/ckpt/gathered.h"
#include "train/ckpt/room.h"
#include "train/comm/agree.h"
#include "train/hf/config_json.h"

namespace muster::train {
namespace {

constexpr char kMuster[] = "muster";  // a member of config.json

// The config.json in a folder, for the members that Muster does not know; empty if there is none.
json::Object base_config(const std::string& folder) {
  const auto text = folder.empty() ? Result<std::string>("{}") : hf::read_config_text(folder);
  auto config = text ? json::parse_object(*text) : Result<json::Object>(json::Object{});
  return config ? *std::move(config) : json::Object{};
}

json::Object config_json(const ModelConfig& model, hf::Number number, json::Object base) {
  json::Object config = hf::to_config(model, std::move(base));
  config["torch_dtype"] = hf::torch_name(number);
  return config;
}

Result<void> write_json(const std::string& path, const json::Object& object) {
  return write_file_atomic(path, json::pretty(object) + "\n");
}

// The files beside the weights. `tokenizer` is the configuration's; it wins over one of the folder.
Result<void> copy_beside(const std::string& from, const std::string& tokenizer, const std::string& to) {
  if (!from.empty()) MUSTER_CHECK(hf::copy_companions(from, to));
  return tokenizer.empty() ? Result<void>{} : text::copy_tokenizer(tokenizer, to);
}

bool is_there(const std::string& path) { return !path.empty() && access(path.c_str(), F_OK) == 0; }

// The finished models in a folder are removed but for that of `step`.
Result<void> remove_other_models(const std::string& folder, std::int64_t step) {
  MUSTER_TRY(const auto entries, list_checkpoints(folder, false));
  std::vector<std::int64_t> kept = {step};
  for (const StepEntry& entry : entries) {
    if (!entry.finished) kept.push_back(entry.step);  // perhaps a save under way
  }
  return remove_checkpoints(folder, kept, INT64_MAX);
}

}  // namespace

Result<void> check_replaceable(const std::string& folder) {
  MUSTER_TRY(const auto entries, list_checkpoints(folder, false));
  const auto refuse = [](const std::string& why) {
    return fail(ErrorCode::failed_precondition,
                why + ", which the finished model would replace; choose another output.dir, or move it away");
  };
  for (const StepEntry& entry : entries) {
    if (!entry.finished) continue;
    const auto reader = Reader::open(entry.path);
    if (!reader) return refuse(entry.path + " cannot be read (" + reader.error().message + ")");
    const bool trains = std::ranges::any_of(reader->info().tensors, [](const TensorInfo& tensor) {
      return tensor.name.starts_with(kOptimizerPrefix);
    });
    if (trains) return refuse(entry.path + " is a checkpoint with optimizer state");
  }
  return {};
}

Result<void> write_model(const std::string& folder, const Config& config, const CheckpointInfo& info,
                         std::span<const TensorSlice> slices, int node, Comm& comm) {
  const auto describe = [&]() -> Result<void> {
    if (comm.rank() != 0) return {};
    MUSTER_CHECK(check_replaceable(folder));
    MUSTER_CHECK(make_directories(folder));
    json::Object object = config_json(config.model, hf::Number::f32, base_config(config.pretrained));
    object[kMuster] =
        json::Object{{"step", info.step}, {"tokenizer_sha256", info.tokenizer_hash}, {"config", info.config}};
    MUSTER_CHECK(write_json(folder + "/" + hf::kConfigName, object));
    return copy_beside(config.pretrained, config.tokenizer, folder);
  };
  MUSTER_CHECK(agree(comm, describe()));
  MUSTER_CHECK(save_gathered(folder, info, slices, node, comm));
  return agree(comm, comm.rank() == 0 ? remove_other_models(folder, info.step) : Result<void>{});
}

Result<hf::Written> export_model(ModelFolder& model, const std::string& folder,
                                 const hf::WriteOptions& options) {
  const Config& trained = model.config();
  // A folder of checkpoints holds weights only.
  const bool described = is_there(model.path() + "/" + hf::kConfigName);
  const std::string from = described ? model.path() : is_there(trained.pretrained) ? trained.pretrained : "";
  const std::string tokenizer = described || !is_there(trained.tokenizer) ? "" : trained.tokenizer;
  hf::Written written;
  const auto fill = [&](const std::string& work) -> Result<void> {
    json::Object config = config_json(model.model(), options.number, base_config(from));
    config.erase(kMuster);
    MUSTER_CHECK(write_json(work + "/" + hf::kConfigName, config));
    MUSTER_CHECK(copy_beside(from, tokenizer, work));
    const auto slices = [&](const Slice& slice, std::span<float> out) { return model.read(slice, out); };
    MUSTER_TRY(written, hf::write_weights(work, model.model(), slices, options));
    return {};
  };
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // it ends in a slash
  const Room room(path.parent_path().string(),
                  static_cast<std::uint64_t>(parameter_count(model.model()) * hf::size_of(options.number)),
                  kWhenFull);
  const auto made = hf::make_folder_atomic(folder, fill);
  if (!made) return tl::unexpected(room.explained(made.error()));
  return written;
}

}  // namespace muster::train
