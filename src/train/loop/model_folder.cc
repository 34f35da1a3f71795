#include "train/loop/model_folder.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"
#include "text/tokenizer.h"
#include "train/ckpt/gathered.h"
#include "train/comm/agree.h"
#include "train/hf/config_json.h"
#include "train/loop/state.h"

namespace muster::train {
namespace {

constexpr const char* kTokenizerNames[] = {"tokenizer.json", "tokenizer.model"};
constexpr std::int64_t kWindow = 512;
constexpr char kMuster[] = "muster";  // a member of config.json

Result<std::string> hash_of(const std::string& path) {
  MUSTER_TRY(const std::string content, read_file(path));
  return crypto::hex(crypto::sha256(content));
}

// Of the tokenizers in a folder: none, one, or both forms of one.
Result<std::vector<std::string>> tokenizer_hashes(const std::string& folder) {
  std::vector<std::string> hashes;
  for (const char* name : kTokenizerNames) {
    auto hash = hash_of(folder + "/" + name);
    if (!hash && hash.error().code == ErrorCode::not_found) continue;
    if (!hash) return tl::unexpected(hash.error());
    hashes.push_back(*std::move(hash));
  }
  return hashes;
}

Result<void> check_among(const std::vector<std::string>& hashes, const std::string& hash,
                         const std::string& folder, const std::string& what) {
  if (hashes.empty() || std::ranges::find(hashes, hash) != hashes.end()) return {};
  return fail(ErrorCode::failed_precondition, "the model in " + folder + " is for tokenizer " +
                                                  join(hashes, " or ") + ", " + what + " is made with " +
                                                  hash);
}

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

bool is_there(const std::string& path) {
  struct stat status {};
  return !path.empty() && stat(path.c_str(), &status) == 0;
}

}  // namespace

Result<ModelFolder> ModelFolder::open(const std::string& folder) {
  ModelFolder model;
  model.folder_ = folder;
  MUSTER_CHECK(hf::has_weights(folder) ? model.open_hugging_face() : model.open_checkpoint());
  return model;
}

Result<void> ModelFolder::open_hugging_face() {
  MUSTER_TRY(config_.model, hf::read_config(folder_));
  config_.sequence = std::min(config_.model.max_sequence, kWindow);
  MUSTER_TRY(weights_, hf::Weights::open(folder_));
  MUSTER_CHECK(weights_->check(config_.model));
  MUSTER_TRY(tokenizer_hashes_, tokenizer_hashes(folder_));
  return {};
}

Result<void> ModelFolder::open_checkpoint() {
  auto newest = latest_checkpoint(folder_, OnDamage::refuse);
  if (!newest) {
    return fail(
        newest.error().code,
        newest.error().message + "; bring the file back, or remove that step to use the one before it");
  }
  if (!newest->reader) {
    return fail(ErrorCode::not_found,
                "no model in " + folder_ +
                    ": it has no finished step-N and no safetensors; give the folder that "
                    "training wrote as output.dir or checkpoint.dir, or a Hugging Face "
                    "model");
  }
  reader_ = std::move(newest->reader);
  MUSTER_TRY(config_, from_json(reader_->info().config));
  const auto& tensors = reader_->info().tensors;
  const auto embedding = std::ranges::find(tensors, "model.embed_tokens.weight", &TensorInfo::name);
  if (embedding == tensors.end() || embedding->shape.size() != 2) {
    return fail(ErrorCode::corrupt, "the checkpoint in " + folder_ + " has no model.embed_tokens.weight");
  }
  config_.model.vocab = embedding->shape[0];
  MUSTER_TRY(config_.model, validated(config_.model));
  tokenizer_hashes_ = {reader_->info().tokenizer_hash};
  return check_tensors(*reader_, state_tensors(ParamTable(config_.model), Dtype::f32, false));
}

std::int64_t ModelFolder::step() const { return reader_ ? reader_->info().step : 0; }

Result<void> ModelFolder::check_tokenizer(const std::string& hash, const std::string& what) const {
  return check_among(tokenizer_hashes_, hash, folder_, what);
}

Result<std::string> ModelFolder::tokenizer_file() const {
  for (const char* name : kTokenizerNames) {
    if (is_there(folder_ + "/" + name)) return folder_ + "/" + name;
  }
  return fail(ErrorCode::not_found, folder_ +
                                        " has no tokenizer.json and no tokenizer.model (a folder of "
                                        "checkpoints has none): give --tokenizer FILE");
}

Result<void> ModelFolder::read(const Slice& slice, std::span<float> out) {
  if (reader_) return reader_->read(slice, std::as_writable_bytes(out));
  weights_->read(slice, out);
  return {};
}

Result<Model> ModelFolder::load(std::int64_t sequence, Dtype dtype) {
  ModelConfig config = config_.model;
  config.max_sequence = std::min(config.max_sequence, sequence);
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

Result<hf::Written> ModelFolder::write_to(const std::string& folder, const hf::WriteOptions& options) {
  // A folder of checkpoints holds weights only.
  const bool described = is_there(folder_ + "/" + hf::kConfigName);
  const std::string from = described ? folder_ : is_there(config_.pretrained) ? config_.pretrained : "";
  const std::string tokenizer = described || !is_there(config_.tokenizer) ? "" : config_.tokenizer;
  hf::Written written;
  const auto fill = [&](const std::string& work) -> Result<void> {
    json::Object config = config_json(config_.model, options.number, base_config(from));
    config.erase(kMuster);
    MUSTER_CHECK(write_json(work + "/" + hf::kConfigName, config));
    MUSTER_CHECK(copy_beside(from, tokenizer, work));
    const auto slices = [this](const Slice& slice, std::span<float> out) { return read(slice, out); };
    MUSTER_TRY(written, hf::write_weights(work, config_.model, slices, options));
    return {};
  };
  MUSTER_CHECK(hf::make_folder_atomic(folder, fill));
  return written;
}

Result<void> load_pretrained(const std::string& folder, const std::string& tokenizer_hash,
                             const ParamTable& table, FlatBuffer& weights, Comm& comm) {
  const auto open = [&]() -> Result<hf::Weights> {
    MUSTER_TRY(hf::Weights found, hf::Weights::open(folder));
    MUSTER_CHECK(found.check(table.config()));
    MUSTER_TRY(const auto hashes, tokenizer_hashes(folder));
    MUSTER_CHECK(check_among(hashes, tokenizer_hash, folder, "the data"));
    return found;
  };
  const auto source = open();
  const std::string mine = source ? source->fingerprint() : "error: " + source.error().message;
  MUSTER_TRY(const auto all, comm.gather_text(mine));
  if (!source) return tl::unexpected(source.error().with_context("model.from"));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    return fail(ErrorCode::failed_precondition, "the ranks find different weights in model.from = " + folder +
                                                    ": rank " + std::to_string(comm.rank()) + " " + mine +
                                                    ", rank " + std::to_string(rank) + " " + all[rank]);
  }
  read_weights(*source, table, weights);
  return {};
}

Result<void> write_model(const std::string& folder, const Config& config, const CheckpointInfo& info,
                         std::span<const TensorSlice> slices, int node, Comm& comm) {
  const auto describe = [&]() -> Result<void> {
    if (comm.rank() != 0) return {};
    MUSTER_CHECK(make_directories(folder));
    json::Object object = config_json(config.model, hf::Number::f32, base_config(config.pretrained));
    object[kMuster] =
        json::Object{{"step", info.step}, {"tokenizer_sha256", info.tokenizer_hash}, {"config", info.config}};
    MUSTER_CHECK(write_json(folder + "/" + hf::kConfigName, object));
    return copy_beside(config.pretrained, config.tokenizer, folder);
  };
  MUSTER_CHECK(agree(comm, describe()));
  MUSTER_CHECK(save_gathered(folder, info, slices, node, comm));
  return agree(comm, comm.rank() == 0 ? remove_checkpoints(folder, {info.step}, INT64_MAX) : Result<void>{});
}

}  // namespace muster::train
