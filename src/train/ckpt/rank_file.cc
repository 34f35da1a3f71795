#include "train/ckpt/rank_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/assert.h"
#include "base/crypto.h"
#include "train/ckpt/manifest.h"

namespace muster::train {
namespace {

// So often what is written goes to the disk: no single fsync is long, however big the file.
constexpr std::uint64_t kSyncBytes = 64u << 20;

std::string_view chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string rank_file_name(int rank) { return "rank-" + std::to_string(rank) + ".bin"; }
std::string node_file_name(int node) { return "node-" + std::to_string(node) + ".json"; }

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

Result<RankFile> RankFile::create(const std::string& step_folder, int rank, int node,
                                  std::atomic<std::uint64_t>* progress) {
  std::string name = rank_file_name(rank);
  std::string path = step_folder + "/" + name;
  MUSTER_TRY(UniqueFd fd, open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
  return RankFile(std::move(fd), std::move(path), std::move(name), node, progress);
}

Result<void> RankFile::begin(const Slice& slice, const TensorInfo& tensor) {
  static constexpr std::array<char, kSliceAlignment> kZeros{};
  if (const std::uint64_t over = bytes_ % kSliceAlignment; over != 0)
    MUSTER_CHECK(write({kZeros.data(), kSliceAlignment - over}));
  auto object = slice_to_json(slice, tensor);
  object["file"] = name_;
  object["offset"] = bytes_;
  slices_.push_back(std::move(object));
  return {};
}

Result<void> RankFile::append(std::span<const std::byte> bytes) { return write(chars(bytes)); }

Result<void> RankFile::write(std::string_view data) {
  while (!data.empty()) {
    const std::uint64_t room = kBlockBytes - bytes_ % kBlockBytes;
    const auto part = data.substr(0, std::min<std::uint64_t>(room, data.size()));
    if (auto written = write_all(fd_.get(), part); !written)
      return tl::unexpected(written.error().with_context(path_));
    crc_ = crypto::crc32c(part, crc_);
    bytes_ += part.size();
    if (bytes_ % kBlockBytes == 0) crcs_.push_back(std::exchange(crc_, 0));
    if (bytes_ - synced_ >= kSyncBytes) MUSTER_CHECK(sync());
    if (progress_ != nullptr) progress_->fetch_add(part.size(), std::memory_order_relaxed);
    data.remove_prefix(part.size());
  }
  return {};
}

Result<void> RankFile::sync() {
  if (fsync(fd_.get()) != 0) return fail_errno("fsync " + path_);
  synced_ = bytes_;
  return {};
}

Result<json::Object> RankFile::finish() {
  if (bytes_ % kBlockBytes != 0) crcs_.push_back(std::exchange(crc_, 0));
  MUSTER_CHECK(sync());
  json::Object file{{"name", name_}, {"bytes", bytes_}, {"node", node_}};
  file["crc32c"] = crcs_to_json(crcs_);
  return json::Object{{"file", std::move(file)}, {"slices", std::move(slices_)}};
}

Result<json::Object> write_rank_file(const std::string& step_folder, std::span<const TensorSlice> slices,
                                     std::span<const TensorInfo> tensors, int rank, int node,
                                     std::atomic<std::uint64_t>* progress) {
  MUSTER_TRY(RankFile file, RankFile::create(step_folder, rank, node, progress));
  for (const TensorSlice& piece : slices) {
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const TensorInfo& info) { return info.name == piece.slice.tensor; });
    MUSTER_ASSERT(tensor != tensors.end());
    MUSTER_ASSERT(piece.bytes.size() ==
                  static_cast<std::size_t>(piece.slice.numel()) * tensor->element_bytes());
    MUSTER_CHECK(file.begin(piece.slice, *tensor));
    MUSTER_CHECK(file.append(piece.bytes));
  }
  return file.finish();
}

std::string step_folder(const std::string& folder, std::int64_t step) {
  return (std::filesystem::path(folder) / ("step-" + std::to_string(step))).string();
}

Result<void> prepare_step(const std::string& step_folder) {
  // A link leads to the checkpoint of another run, which is left alone. Other ranks may remove it, too.
  if (std::error_code none; std::filesystem::is_symlink(step_folder, none)) unlink(step_folder.c_str());
  MUSTER_CHECK(make_directories(step_folder));
  const std::string manifest = step_folder + "/" + kManifestName;
  if (unlink(manifest.c_str()) == 0) return sync_directory(step_folder);
  return errno == ENOENT ? Result<void>() : Result<void>(fail_errno("remove " + manifest));
}

Result<void> write_node_manifest(const std::string& step_folder, std::int64_t step,
                                 const std::vector<json::Object>& records, int node) {
  json::Array files;
  for (const auto& record : records) {
    const auto& file = record.at("file").as_object();
    if (file.at("node").to_number<int>() == node) files.push_back(file);
  }
  const json::Object manifest{{"step", step}, {"node", node}, {"files", std::move(files)}};
  MUSTER_CHECK(write_file_atomic(step_folder + "/" + node_file_name(node), json::dump(manifest) + "\n"));
  return sync_directory(parent_of(step_folder));
}

Result<void> write_manifest(const std::string& step_folder, const CheckpointInfo& info,
                            const std::vector<json::Object>& records) {
  MUSTER_CHECK(write_file_atomic(step_folder + "/" + kManifestName, manifest_text(info, records)));
  return sync_directory(parent_of(step_folder));
}

void discard_step(const std::string& step_folder, int first_rank, int ranks, std::optional<int> node) {
  const auto remove = [&](const std::string& name) { unlink((step_folder + "/" + name).c_str()); };
  if (node) {
    remove(kManifestName);
    remove(node_file_name(*node));
  }
  for (int rank = first_rank; rank < first_rank + ranks; ++rank) remove(rank_file_name(rank));
  rmdir(step_folder.c_str());
}

}  // namespace muster::train
