#include "train/ckpt/convert.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/assert.h"
#include "train/ckpt/manifest.h"
#include "train/ckpt/rank_file.h"

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

}  // namespace

Result<void> convert_checkpoint(Reader& from, const std::string& folder, const ConvertOptions& options) {
  MUSTER_ASSERT(options.ranks >= 1);
  CheckpointInfo info = from.info();
  if (options.weights_only)
    std::erase_if(info.tensors, [](const auto& tensor) { return tensor.name.starts_with(kOptimizerPrefix); });
  info.layout = {{"world", options.ranks}};
  const std::string step = step_folder(folder, info.step);
  if (access((step + "/" + kManifestName).c_str(), F_OK) == 0) {
    return fail(ErrorCode::already_exists, step + " is there already; choose another folder or remove it");
  }
  Conversion conversion{.from = from, .info = info, .step = step, .options = options};
  for (const TensorInfo& tensor : info.tensors) conversion.total += tensor.numel() * tensor.element_bytes();
  auto outcome = conversion.run();
  if (!outcome) {
    std::error_code ignored;  // what is left does not count in any case
    std::filesystem::remove_all(step, ignored);
  }
  return outcome;
}

}  // namespace muster::train
