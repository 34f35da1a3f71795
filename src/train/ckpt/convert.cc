#include "train/ckpt/convert.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/assert.h"
#include "train/ckpt/lock.h"
#include "train/ckpt/manifest.h"
#include "train/ckpt/rank_file.h"
#include "train/ckpt/room.h"

namespace muster::train {
namespace {

constexpr std::int64_t kPieceBytes = 16 << 20;

// One conversion under way.
struct Conversion {
  Reader& from;
  const CheckpointInfo& info;  // of the result
  const std::string& step;     // its folder
  const ConvertOptions& options;
  std::uint64_t total = 0;
  std::uint64_t done = 0;
  std::vector<std::byte> piece = std::vector<std::byte>(kPieceBytes);

  Result<void> copy(const TensorInfo& tensor, Range range, RankFile& file) {
    const auto box = whole_box(tensor.shape);
    const auto element = static_cast<std::int64_t>(tensor.element_bytes());
    MUSTER_CHECK(file.begin({tensor.name, box, range}, tensor));
    for (std::int64_t at = range.begin; at < range.end;) {
      const std::int64_t end = std::min(range.end, at + kPieceBytes / element);
      const auto bytes = std::span(piece).first(static_cast<std::size_t>((end - at) * element));
      MUSTER_CHECK(from.read({tensor.name, box, {at, end}}, bytes));
      MUSTER_CHECK(file.append(bytes));
      done += bytes.size();
      if (options.progress) options.progress(done, total);
      at = end;
    }
    return {};
  }

  Result<void> run() {
    MUSTER_CHECK(prepare_step(step));
    std::vector<json::Object> records;
    for (int rank = 0; rank < options.ranks; ++rank) {
      MUSTER_TRY(RankFile file, RankFile::create(step, rank, 0));
      for (const TensorInfo& tensor : info.tensors) {
        const auto range = part_of(static_cast<std::int64_t>(tensor.numel()), rank, options.ranks);
        MUSTER_CHECK(copy(tensor, range, file));
      }
      MUSTER_TRY(json::Object record, file.finish());
      records.push_back(std::move(record));
    }
    MUSTER_CHECK(write_node_manifest(step, info.step, records, 0));
    return write_manifest(step, info, records);
  }
};

Result<void> check_slices(std::uint64_t tensors, int ranks) {
  if (tensors * static_cast<std::uint64_t>(ranks) <= kConvertSlicesMax) return {};
  return fail(ErrorCode::invalid_argument,
              std::to_string(ranks) + " ranks, each with a part of " + std::to_string(tensors) +
                  " tensors: the manifest would have " +
                  std::to_string(tensors * static_cast<std::uint64_t>(ranks)) + " entries, at most " +
                  std::to_string(kConvertSlicesMax) + " are written; up to --ranks " +
                  std::to_string(kConvertSlicesMax / tensors) + " fits");
}

// Nothing is written into the folder of a training. One that has no lock file has none.
Result<std::optional<FileLock>> hold(const std::string& folder) {
  if (access((folder + "/" + kLockName).c_str(), F_OK) != 0) return std::optional<FileLock>();
  auto lock = lock_checkpoints(folder, Millis(0));
  if (lock || lock.error().code != ErrorCode::failed_precondition) return lock;
  return fail(lock.error().code, lock.error().message +
                                     ", which writes checkpoints there; choose another "
                                     "folder for the result");
}

// A step holds nothing but what its manifest names: what else were in it would go with it when it is pruned.
Result<void> check_outside_of_steps(const std::string& folder) {
  std::error_code error;
  auto path = std::filesystem::weakly_canonical(std::filesystem::absolute(folder, error), error);
  if (error) return fail_errno(folder, error.value());
  for (; path.has_relative_path(); path = path.parent_path()) {
    if (path.filename().string().starts_with("step-") &&
        std::filesystem::exists(path / kManifestName, error)) {
      return fail(ErrorCode::invalid_argument, folder + " is inside of the checkpoint " + path.string() +
                                                   "; choose a folder outside of it for the result");
    }
  }
  return {};
}

}  // namespace

Result<void> convert_checkpoint(Reader& from, const std::string& folder, const ConvertOptions& options) {
  MUSTER_ASSERT(options.ranks >= 1);
  CheckpointInfo info = from.info();
  if (options.weights_only)
    std::erase_if(info.tensors, [](const auto& tensor) { return tensor.name.starts_with(kOptimizerPrefix); });
  MUSTER_CHECK(check_outside_of_steps(folder));
  MUSTER_CHECK(check_slices(info.tensors.size(), options.ranks));
  info.layout = {{"world", options.ranks}};
  MUSTER_TRY(const auto held, hold(folder));
  const std::string step = step_folder(folder, info.step);
  if (access((step + "/" + kManifestName).c_str(), F_OK) == 0) {
    return fail(ErrorCode::already_exists, step + " is there already; choose another folder or remove it");
  }
  Conversion conversion{.from = from, .info = info, .step = step, .options = options};
  conversion.total = bytes_of(info.tensors);
  const bool is_new = access(folder.c_str(), F_OK) != 0;
  MUSTER_CHECK(make_directories(folder));
  const Room room(folder, conversion.total, kWhenFull);
  const auto outcome = conversion.run();
  if (outcome) return {};
  discard_step(step, 0, options.ranks, 0);
  if (is_new) rmdir(folder.c_str());
  return tl::unexpected(room.explained(outcome.error()));
}

}  // namespace muster::train
