// Writes rank-R.bin: slices one after the other, aligned, with the checksum of every block. Internal to ckpt.
// One thread an object; progress() may be read by any.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "train/ckpt/checkpoint.h"

namespace muster::train {

class RankFile {
 public:
  // Makes step_folder/rank-R.bin, or empties it. `progress`, if not null, rises with every piece that is
  // written, by at least one for every 4 MiB.
  static Result<RankFile> create(const std::string& step_folder, int rank, int node,
                                 std::atomic<std::uint64_t>* progress = nullptr);

  // The bytes appended from here on are this slice's elements.
  Result<void> begin(const Slice& slice, const TensorInfo& tensor);
  Result<void> append(std::span<const std::byte> bytes);

  // fsync. What lies where: {"file": {...}, "slices": [...]}, as the manifest has them.
  Result<json::Object> finish();

 private:
  RankFile(UniqueFd fd, std::string path, std::string name, int node, std::atomic<std::uint64_t>* progress)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        name_(std::move(name)),
        node_(node),
        progress_(progress) {}
  Result<void> write(std::string_view data);
  Result<void> sync();

  UniqueFd fd_;
  std::string path_;
  std::string name_;
  int node_ = 0;
  std::atomic<std::uint64_t>* progress_ = nullptr;
  json::Array slices_;
  std::uint64_t bytes_ = 0;
  std::uint64_t synced_ = 0;
  std::uint32_t crc_ = 0;  // of the block that is not full yet
  std::vector<std::uint32_t> crcs_;
};

// All slices of a rank, whose tensors are among `tensors`.
Result<json::Object> write_rank_file(const std::string& step_folder, std::span<const TensorSlice> slices,
                                     std::span<const TensorInfo> tensors, int rank, int node,
                                     std::atomic<std::uint64_t>* progress = nullptr);

// The rest of a step, for one rank of the node or of all:
// The folder, without a manifest that an earlier save of this step has left; a link in its place goes.
Result<void> prepare_step(const std::string& step_folder);
// node-K.json. records: one a rank, as RankFile::finish() gives them.
Result<void> write_node_manifest(const std::string& step_folder, std::int64_t step,
                                 const std::vector<json::Object>& records, int node);
// manifest.json: from here on the step counts.
Result<void> write_manifest(const std::string& step_folder, const CheckpointInfo& info,
                            const std::vector<json::Object>& records);

// Takes back what a save that failed has written, so that it holds no room on a full disk: the files of these
// ranks; with `node`, its node-K.json and the manifest; the folder, if nothing else is in it. As far as that
// can be done: without its manifest the step does not count in any case.
void discard_step(const std::string& step_folder, int first_rank, int ranks, std::optional<int> node);

}  // namespace muster::train
