#include "train/hf/weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/assert.h"
#include "base/crypto.h"
#include "base/file.h"
#include "base/json.h"
#include "train/hf/config_json.h"

namespace muster::train::hf {
namespace {

constexpr std::uint64_t kTextBytesMax = 64u << 20;  // of the index

bool is_there(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0;
}

// Files of old versions store what is computed from the configuration.
bool is_computed(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

tl::unexpected<Error> no_weights(const std::string& folder) {
  const bool pickled =
      is_there(folder + "/pytorch_model.bin") || is_there(folder + "/pytorch_model.bin.index.json");
  return fail(ErrorCode::not_found,
              folder + " has no " + kWeightsName + " and no " + kIndexName +
                  (pickled ? "; pytorch_model.bin is not read: save the model as safetensors" : ""));
}

// Tensor to file name.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  MUSTER_TRY(const std::string text, read_regular_file(path, kTextBytesMax));
  const auto index = json::parse_object(text);
  if (!index) return tl::unexpected(index.error().with_context(path));
  const auto* map = json::opt_object(*index, "weight_map");
  if (map == nullptr || map->empty()) return fail(ErrorCode::corrupt, path + " has no weight_map");
  auto files = json::string_map(*map);
  for (const auto& [tensor, file] : files) {
    if (file.empty() || file.find('/') != std::string::npos) {
      return fail(ErrorCode::corrupt, path + ": " + tensor + " in file \"" + file + "\"");
    }
  }
  return files;
}

}  // namespace

bool has_weights(const std::string& folder) {
  return is_there(folder + "/" + kWeightsName) || is_there(folder + "/" + kIndexName);
}

Result<std::string> read_config_text(const std::string& folder) {
  return read_regular_file(folder + "/" + kConfigName, 1 << 20);
}

Result<ModelConfig> read_config(const std::string& folder) {
  MUSTER_TRY(const std::string text, read_config_text(folder));
  auto config = parse_config(text);
  if (!config) return tl::unexpected(config.error().with_context(folder));
  return config;
}

Result<Weights> Weights::open(const std::string& folder) {
  Weights weights;
  weights.folder_ = folder;
  if (is_there(folder + "/" + kWeightsName)) {
    MUSTER_CHECK(weights.add(folder + "/" + kWeightsName));
    return weights;
  }
  if (!is_there(folder + "/" + kIndexName)) return no_weights(folder);
  MUSTER_TRY(const auto files, read_index(folder + "/" + kIndexName));
  std::set<std::string> names;
  for (const auto& [tensor, file] : files) names.insert(file);
  for (const auto& name : names) {
    const std::string path = folder + "/" + name;
    if (!is_there(path)) {
      return fail(ErrorCode::corrupt, path + " is missing; " + kIndexName + " lists it");
    }
    MUSTER_CHECK(weights.add(path));
  }
  MUSTER_CHECK(weights.check_index(files));
  return weights;
}

Result<void> Weights::add(const std::string& path) {
  MUSTER_TRY(File file, File::open(path));
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const std::string& name = file.tensors()[i].name;
    const auto [place, added] = places_.try_emplace(name, Place{files_.size(), i});
    if (!added) {
      const std::string other = place->second.file < files_.size() ? files_[place->second.file].path() : path;
      return fail(ErrorCode::corrupt, "tensor " + name + " is in " + other + " and again in " + path);
    }
  }
  files_.push_back(std::move(file));
  return {};
}

Result<void> Weights::check_index(const std::map<std::string, std::string>& files) const {
  for (const auto& [tensor, file] : files) {
    const auto place = places_.find(tensor);
    if (place == places_.end() || files_[place->second.file].path() != folder_ + "/" + file) {
      return fail(ErrorCode::corrupt, folder_ + "/" + file + " has no tensor " + tensor + "; " + kIndexName +
                                          " says that it is there");
    }
  }
  return {};
}

const Tensor* Weights::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &files_[place->second.file].tensors()[place->second.tensor];
}

Result<void> Weights::check(const ModelConfig& config) const {
  const ParamTable table(config);
  for (const Param& param : table.params()) {
    const Tensor* tensor = find(param.name);
    if (tensor == nullptr) {
      return fail(ErrorCode::failed_precondition, folder_ + " has no tensor " + param.name + "; " +
                                                      kConfigName + " describes a model with it");
    }
    if (tensor->shape != param.shape) {
      return fail(ErrorCode::failed_precondition, folder_ + ": tensor " + param.name + " has shape " +
                                                      shape_text(tensor->shape) + ", the model's has " +
                                                      shape_text(param.shape));
    }
  }
  for (const auto& [name, place] : places_) {
    if (table.find(name) != nullptr || is_computed(name)) continue;
    if (config.tied && name == "lm_head.weight") continue;
    return fail(ErrorCode::unsupported,
                folder_ + ": the model has no tensor " + name +
                    "; Muster computes the shapes of Llama 2 and 3 (projections without "
                    "bias, norms without bias, the head \"lm_head.weight\")");
  }
  return {};
}

void Weights::read(const Slice& slice, std::span<float> out) const {
  const auto place = places_.find(slice.tensor);
  MUSTER_ASSERT(place != places_.end());
  const File& file = files_[place->second.file];
  const Tensor& tensor = file.tensors()[place->second.tensor];
  MUSTER_ASSERT(tensor.shape.size() == slice.box.start.size());
  MUSTER_ASSERT(out.size() == static_cast<std::size_t>(slice.numel()));
  const auto bytes = file.bytes(tensor);
  const auto size = static_cast<std::size_t>(size_of(tensor.number));
  std::size_t found = 0;
  for (const Run& run : intersect(whole_slice(tensor.name, whole_box(tensor.shape)), slice)) {
    const auto count = static_cast<std::size_t>(run.count);
    widen(tensor.number, bytes.subspan(static_cast<std::size_t>(run.a) * size, count * size),
          out.subspan(static_cast<std::size_t>(run.b), count));
    found += count;
  }
  MUSTER_ASSERT(found == out.size());
}

std::string Weights::fingerprint() const {
  constexpr std::size_t kLooked = 64;
  std::uint32_t crc = 0;
  for (const File& file : files_) {
    crc = crypto::crc32c(file.header(), crc);
    for (const Tensor& tensor : file.tensors()) {
      const auto bytes = file.bytes(tensor);
      crc =
          crypto::crc32c({reinterpret_cast<const char*>(bytes.data()), std::min(kLooked, bytes.size())}, crc);
    }
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

}  // namespace muster::train::hf
