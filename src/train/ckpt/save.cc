#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "base/crypto.h"
#include "base/file.h"
#include "train/ckpt/checkpoint.h"
#include "train/ckpt/manifest.h"

namespace muster::train {
namespace {

std::string_view chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Appends to a file and keeps the CRC32C of every block of it.
class BlockWriter {
 public:
  explicit BlockWriter(UniqueFd fd) : fd_(std::move(fd)) {}

  Result<void> append(std::string_view data) {
    while (!data.empty()) {
      const std::uint64_t room = kBlockBytes - bytes_ % kBlockBytes;
      const auto part = data.substr(0, std::min<std::uint64_t>(room, data.size()));
      MUSTER_CHECK(write_all(fd_.get(), part));
      crc_ = crypto::crc32c(part, crc_);
      bytes_ += part.size();
      if (bytes_ % kBlockBytes == 0) end_block();
      data.remove_prefix(part.size());
    }
    return {};
  }
  Result<void> align() {
    static constexpr std::array<char, kSliceAlignment> kZeros{};
    const std::uint64_t over = bytes_ % kSliceAlignment;
    return over == 0 ? Result<void>() : append({kZeros.data(), kSliceAlignment - over});
  }
  Result<void> sync() {
    if (bytes_ % kBlockBytes != 0) end_block();
    if (fsync(fd_.get()) != 0) return fail_errno("fsync");
    return {};
  }
  std::uint64_t bytes() const { return bytes_; }
  const std::vector<std::uint32_t>& crcs() const { return crcs_; }

 private:
  void end_block() {
    crcs_.push_back(crc_);
    crc_ = 0;
  }
  UniqueFd fd_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc_ = 0;
  std::vector<std::uint32_t> crcs_;
};

// Writes this rank's slices; the record says what lies where: {"file": {...}, "slices": [...]}.
Result<json::Object> write_slices(const std::string& folder, std::span<const TensorSlice> slices,
                                  const Writer& writer, const CheckpointInfo& info, int rank) {
  const std::string name = "rank-" + std::to_string(rank) + ".bin";
  MUSTER_TRY(UniqueFd fd, open_file(folder + "/" + name, O_WRONLY | O_CREAT | O_TRUNC));
  BlockWriter out(std::move(fd));
  json::Array placed;
  for (const TensorSlice& piece : slices) {
    const auto tensor = std::find_if(info.tensors.begin(), info.tensors.end(),
                                     [&](const TensorInfo& t) { return t.name == piece.slice.tensor; });
    MUSTER_ASSERT(tensor != info.tensors.end());
    MUSTER_CHECK(out.align());
    MUSTER_ASSERT(piece.bytes.size() ==
                  static_cast<std::size_t>(piece.slice.numel()) * tensor->element_bytes());
    auto object = slice_to_json(piece.slice, *tensor);
    object["file"] = name;
    object["offset"] = out.bytes();
    placed.push_back(std::move(object));
    MUSTER_CHECK(out.append(chars(piece.bytes)));
  }
  MUSTER_CHECK(out.sync());
  json::Object file{{"name", name}, {"bytes", out.bytes()}, {"node", writer.node}};
  file["crc32c"] = crcs_to_json(out.crcs());
  return json::Object{{"file", std::move(file)}, {"slices", std::move(placed)}};
}

// Every rank tells how it went; all answer alike.
Result<void> agree(Comm& comm, const Result<void>& mine, std::string_view what) {
  MUSTER_TRY(const auto answers, comm.gather_text(mine ? "" : mine.error().message));
  std::string wrong;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty())
      wrong += (wrong.empty() ? "" : "; ") + ("rank " + std::to_string(rank) + ": ") + answers[rank];
  }
  if (wrong.empty()) return {};
  return fail(mine ? ErrorCode::io : mine.error().code, std::string(what) + ": " + wrong);
}

// A step folder may be left over from a save that was cut off, or be a damaged step: it loses its manifest.
Result<void> prepare(const std::string& folder) {
  MUSTER_CHECK(make_directories(folder));
  const std::string manifest = folder + "/" + kManifestName;
  if (unlink(manifest.c_str()) == 0) return sync_directory(folder);
  return errno == ENOENT ? Result<void>() : Result<void>(fail_errno("remove " + manifest));
}

json::Object node_manifest(const CheckpointInfo& info, const std::vector<json::Object>& records, int node) {
  json::Array files;
  for (const auto& record : records) {
    const auto& file = record.at("file").as_object();
    if (file.at("node").to_number<int>() == node) files.push_back(file);
  }
  return json::Object{{"step", info.step}, {"node", node}, {"files", std::move(files)}};
}

}  // namespace

std::string step_folder(const std::string& folder, std::int64_t step) {
  return folder + "/step-" + std::to_string(step);
}

Result<void> save_checkpoint(const std::string& folder, const CheckpointInfo& info,
                             std::span<const TensorSlice> mine, const Writer& writer, Comm& comm) {
  const std::string what = "checkpoint " + step_folder(folder, info.step);
  const std::string path = step_folder(folder, info.step);
  MUSTER_CHECK(agree(comm, writer.local_rank == 0 ? prepare(path) : Result<void>(), what));

  auto record = write_slices(path, mine, writer, info, comm.rank());
  MUSTER_CHECK(agree(comm, record ? Result<void>() : Result<void>(tl::unexpected(record.error())), what));
  MUSTER_TRY(const auto texts, comm.gather_text(json::dump(*record)));
  std::vector<json::Object> records;
  for (const auto& text : texts) {
    MUSTER_TRY(json::Object parsed, json::parse_object(text));
    records.push_back(std::move(parsed));
  }

  Result<void> done;
  if (writer.local_rank == 0) {
    done = write_file_atomic(path + "/node-" + std::to_string(writer.node) + ".json",
                             json::dump(node_manifest(info, records, writer.node)) + "\n");
    if (done) done = sync_directory(path);
  }
  MUSTER_CHECK(agree(comm, done, what));
  if (comm.rank() == 0) {
    done = write_file_atomic(path + "/" + kManifestName, manifest_text(info, records));
    if (done) done = sync_directory(folder);
  }
  return agree(comm, done, what);
}

}  // namespace muster::train
