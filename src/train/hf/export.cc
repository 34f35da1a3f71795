#include "train/hf/export.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "train/hf/safetensors.h"
#include "train/hf/weights.h"

namespace muster::train::hf {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPiece = 1 << 20;  // elements

constexpr const char* kCompanions[] = {
    "tokenizer.model",   "tokenizer.json",         "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json", "chat_template.jinja"};

// The tensors of each file, in the model's order.
std::vector<std::vector<Tensor>> split(const ModelConfig& config, const WriteOptions& options) {
  std::vector<std::vector<Tensor>> files(1);
  std::uint64_t bytes = 0;
  const ParamTable table(config);
  for (const Param& param : table.params()) {
    const auto own = static_cast<std::uint64_t>(param.numel * size_of(options.number));
    if (!files.back().empty() && bytes + own > options.file_bytes_max) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += own;
    files.back().push_back({.name = param.name, .number = options.number, .shape = param.shape});
  }
  return files;
}

std::string file_name(std::size_t file, std::size_t files) {
  if (files == 1) return kWeightsName;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, files);
  return name;
}

// bf16 and fp16 have a largest number.
Result<void> check_finite(const Tensor& tensor, std::span<const float> values,
                          std::span<const std::byte> bytes) {
  if (tensor.number == Number::f32) return {};
  std::vector<float> written(values.size());
  widen(tensor.number, bytes, written);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || std::isfinite(written[i])) continue;
    return fail(ErrorCode::invalid_argument, "tensor " + tensor.name + " has the value " +
                                                 std::to_string(values[i]) + ", which is infinite in " +
                                                 std::string(torch_name(tensor.number)) +
                                                 "; choose another --dtype (bf16 reaches as far as fp32)");
  }
  return {};
}

Result<void> write_tensor(FileWriter& writer, const Tensor& tensor, const ReadSlice& read) {
  const auto numel = tensor.numel();
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (std::int64_t begin = 0; begin < numel; begin += kPiece) {
    const Range range{begin, std::min(begin + kPiece, numel)};
    values.resize(static_cast<std::size_t>(range.size()));
    bytes.resize(static_cast<std::size_t>(range.size() * size_of(tensor.number)));
    MUSTER_CHECK(read({tensor.name, whole_box(tensor.shape), range}, values));
    narrow(tensor.number, values, bytes);
    MUSTER_CHECK(check_finite(tensor, values, bytes));
    MUSTER_CHECK(writer.append(bytes));
  }
  return {};
}

Result<void> write_file(const std::string& path, const std::vector<Tensor>& tensors, const ReadSlice& read) {
  MUSTER_TRY(FileWriter writer, FileWriter::create(path, tensors));
  for (const Tensor& tensor : tensors) MUSTER_CHECK(write_tensor(writer, tensor, read));
  return writer.finish();
}

}  // namespace

Result<Written> write_weights(const std::string& folder, const ModelConfig& config, const ReadSlice& read,
                              const WriteOptions& options) {
  const auto files = split(config, options);
  Written written{.bytes = static_cast<std::uint64_t>(parameter_count(config) * size_of(options.number)),
                  .files = static_cast<int>(files.size())};
  json::Object map;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = file_name(i, files.size());
    MUSTER_CHECK(write_file(folder + "/" + name, files[i], read));
    for (const Tensor& tensor : files[i]) map[tensor.name] = name;
  }
  if (files.size() == 1) return written;
  const json::Object index{{"metadata", json::Object{{"total_size", written.bytes}}}, {"weight_map", map}};
  MUSTER_CHECK(write_file_atomic(folder + "/" + kIndexName, json::pretty(index) + "\n"));
  return written;
}

Result<int> copy_companions(const std::string& from, const std::string& to) {
  int copied = 0;
  for (const char* name : kCompanions) {
    auto content = read_regular_file(from + "/" + name);
    if (!content && content.error().code == ErrorCode::not_found) continue;
    if (!content) return tl::unexpected(content.error());
    MUSTER_CHECK(write_file_atomic(to + "/" + name, *content));
    ++copied;
  }
  return copied;
}

Result<void> make_folder_atomic(const std::string& folder,
                                const std::function<Result<void>(const std::string&)>& fill) {
  std::error_code error;
  fs::path path = fs::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();                   // it ends in a slash
  if (fs::is_directory(path, error)) path = fs::canonical(path, error);  // of a link, the folder
  const std::string name = path.string();
  if (fs::symlink_status(path, error).type() != fs::file_type::not_found &&
      !(fs::is_directory(path, error) && fs::is_empty(path, error))) {
    return fail(ErrorCode::already_exists, folder + " is there already; choose another folder, or remove it");
  }
  const std::string work = name + ".partial-" + std::to_string(::getpid());
  MUSTER_CHECK(make_directories(work));
  auto done = fill(work);
  if (done && std::rename(work.c_str(), name.c_str()) != 0) done = fail_errno("rename to " + name);
  if (!done) {
    fs::remove_all(work, error);
    return done;
  }
  return sync_directory(fs::path(name).parent_path().string());
}

}  // namespace muster::train::hf
