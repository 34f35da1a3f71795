#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <tuple>

#include "base/assert.h"
#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"
#include "train/ckpt/checkpoint.h"
#include "train/ckpt/manifest.h"

namespace muster::train {
namespace {

std::string hex_of(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

// The last two parts of a path: step-200/rank-1.bin.
std::string short_path(const std::string& folder, const std::string& name) {
  return folder.substr(folder.rfind('/') + 1) + "/" + name;
}

Result<std::uint64_t> get_count(const json::Object& object, std::string_view name) {
  MUSTER_TRY(const std::int64_t value, json::get_int(object, name));
  if (value < 0) return fail(ErrorCode::corrupt, std::string(name) + " is negative");
  return static_cast<std::uint64_t>(value);
}

}  // namespace

Result<Reader> Reader::open(const std::string& step_folder) {
  const std::string path = step_folder + "/" + kManifestName;
  auto text = read_file(path, 1ULL << 30);
  if (!text) {
    if (text.error().code != ErrorCode::not_found) return tl::unexpected(text.error());
    return fail(ErrorCode::not_found,
                short_path(step_folder, kManifestName) + " is not there: the save did not finish");
  }
  Reader reader;
  reader.folder_ = step_folder;
  auto manifest = parse_manifest(*text);
  if (!manifest) return tl::unexpected(manifest.error().with_context(short_path(step_folder, kManifestName)));
  if (auto parsed = reader.parse(*manifest); !parsed) {
    return tl::unexpected(parsed.error().with_context(short_path(step_folder, kManifestName)));
  }
  MUSTER_CHECK(reader.check_files());
  return reader;
}

Result<void> Reader::parse(const json::Object& manifest) {
  MUSTER_TRY(info_, info_of(manifest));
  const auto* files = json::opt_array(manifest, "files");
  const auto* slices = json::opt_array(manifest, "slices");
  if (files == nullptr || slices == nullptr) return fail(ErrorCode::corrupt, "no files or no slices");
  std::map<std::string, std::size_t> file_index, tensor_index;
  for (const auto& element : *files) {
    if (!element.is_object()) return fail(ErrorCode::corrupt, "a file is not an object");
    const auto& object = element.as_object();
    File file;
    MUSTER_TRY(file.name, json::get_string(object, "name"));
    MUSTER_TRY(file.bytes, get_count(object, "bytes"));
    const auto* crcs = json::opt_array(object, "crc32c");
    if (crcs == nullptr || file.name.find('/') != std::string::npos)
      return fail(ErrorCode::corrupt, "file " + file.name);
    MUSTER_TRY(file.crcs, crcs_from_json(*crcs));
    if (file.crcs.size() != (file.bytes + kBlockBytes - 1) / kBlockBytes) {
      return fail(ErrorCode::corrupt, "file " + file.name + " has the wrong number of checksums");
    }
    file_index[file.name] = files_.size();
    files_.push_back(std::move(file));
  }
  for (std::size_t i = 0; i < info_.tensors.size(); ++i) tensor_index[info_.tensors[i].name] = i;
  for (const auto& element : *slices) {
    if (!element.is_object()) return fail(ErrorCode::corrupt, "a slice is not an object");
    const auto& object = element.as_object();
    MUSTER_TRY(const std::string tensor, json::get_string(object, "tensor"));
    MUSTER_TRY(const std::string file, json::get_string(object, "file"));
    if (!tensor_index.contains(tensor) || !file_index.contains(file)) {
      return fail(ErrorCode::corrupt,
                  "a slice of " + tensor + " in " + file + ": one of the two is not listed");
    }
    Slice slice{.tensor = tensor_index[tensor], .file = file_index[file]};
    MUSTER_TRY(slice.begin, get_count(object, "begin"));
    MUSTER_TRY(slice.end, get_count(object, "end"));
    MUSTER_TRY(slice.offset, get_count(object, "offset"));
    slices_.push_back(slice);
  }
  std::sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) {
    return std::tuple(a.tensor, a.begin, a.end) < std::tuple(b.tensor, b.begin, b.end);
  });
  return check_cover();
}

// Every tensor is covered exactly once, and every slice lies in its file.
Result<void> Reader::check_cover() const {
  std::vector<std::uint64_t> covered(info_.tensors.size());
  for (const Slice& slice : slices_) {
    const TensorInfo& tensor = info_.tensors[slice.tensor];
    if (slice.end < slice.begin || slice.begin != covered[slice.tensor] || slice.end > tensor.numel()) {
      return fail(ErrorCode::corrupt, "the slices of " + tensor.name + " overlap or leave a gap at element " +
                                          std::to_string(covered[slice.tensor]));
    }
    covered[slice.tensor] = slice.end;
    const std::uint64_t bytes = (slice.end - slice.begin) * tensor.element_bytes();
    if (slice.offset + bytes > files_[slice.file].bytes) {
      return fail(ErrorCode::corrupt,
                  "a slice of " + tensor.name + " ends behind its file " + files_[slice.file].name);
    }
  }
  for (std::size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] != info_.tensors[i].numel()) {
      return fail(ErrorCode::corrupt, "only " + std::to_string(covered[i]) + " of " +
                                          std::to_string(info_.tensors[i].numel()) + " elements of " +
                                          info_.tensors[i].name + " are there");
    }
  }
  return {};
}

Result<void> Reader::check_files() const {
  for (const File& file : files_) {
    struct stat status {};
    if (stat((folder_ + "/" + file.name).c_str(), &status) != 0) {
      if (errno != ENOENT) return fail_errno(short_path(folder_, file.name));
      return fail(ErrorCode::corrupt,
                  short_path(folder_, file.name) +
                      " is missing; where nodes write to folders of their own, all of them must be "
                      "brought together");
    }
    if (static_cast<std::uint64_t>(status.st_size) != file.bytes) {
      return fail(ErrorCode::corrupt,
                  short_path(folder_, file.name) + " has " + std::to_string(status.st_size) +
                      " bytes, the manifest says " + std::to_string(file.bytes) +
                      (static_cast<std::uint64_t>(status.st_size) < file.bytes ? ": truncated" : ""));
    }
  }
  return {};
}

std::uint64_t Reader::bytes() const {
  std::uint64_t sum = 0;
  for (const File& file : files_) sum += file.bytes;
  return sum;
}

Result<void> Reader::load_block(std::size_t file_number, std::uint64_t block) {
  if (block_file_ == file_number && block_index_ == block) return {};
  block_file_ = SIZE_MAX;
  const File& file = files_[file_number];
  const std::uint64_t begin = block * kBlockBytes;
  MUSTER_ASSERT(begin < file.bytes);
  block_.resize(std::min(kBlockBytes, file.bytes - begin));
  MUSTER_TRY(const UniqueFd fd, open_file(folder_ + "/" + file.name, O_RDONLY));
  for (std::size_t done = 0; done < block_.size();) {
    const ssize_t got =
        pread(fd.get(), block_.data() + done, block_.size() - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("read " + short_path(folder_, file.name));
    if (got == 0)
      return fail(ErrorCode::corrupt,
                  short_path(folder_, file.name) + " has become shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
  const std::uint32_t crc = crypto::crc32c(block_);
  if (crc != file.crcs[block]) {
    return fail(ErrorCode::corrupt, short_path(folder_, file.name) + ": block " + std::to_string(block) +
                                        " (bytes " + std::to_string(begin) + " to " +
                                        std::to_string(begin + block_.size() - 1) +
                                        ") is altered: its checksum is " + hex_of(crc) + ", stored is " +
                                        hex_of(file.crcs[block]));
  }
  block_file_ = file_number;
  block_index_ = block;
  return {};
}

Result<void> Reader::read_file_range(std::size_t file, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    MUSTER_CHECK(load_block(file, offset / kBlockBytes));
    const std::uint64_t within = offset % kBlockBytes;
    const std::size_t count = std::min<std::size_t>(out.size(), block_.size() - within);
    std::memcpy(out.data(), block_.data() + within, count);
    out = out.subspan(count);
    offset += count;
  }
  return {};
}

Result<void> Reader::read(std::string_view name, std::uint64_t begin, std::span<std::byte> out) {
  const auto found =
      std::find_if(info_.tensors.begin(), info_.tensors.end(), [&](const auto& t) { return t.name == name; });
  if (found == info_.tensors.end())
    return fail(ErrorCode::not_found, "the checkpoint has no tensor " + std::string(name));
  const auto tensor = static_cast<std::size_t>(found - info_.tensors.begin());
  const std::uint64_t element = found->element_bytes(), end = begin + out.size() / element;
  MUSTER_ASSERT(out.size() % element == 0);
  if (end > found->numel()) {
    return fail(ErrorCode::invalid_argument, std::string(name) + " has " + std::to_string(found->numel()) +
                                                 " elements, " + std::to_string(end) + " were asked for");
  }
  for (const Slice& slice : slices_) {
    const std::uint64_t from = std::max(begin, slice.begin), to = std::min(end, slice.end);
    if (slice.tensor != tensor || from >= to) continue;
    MUSTER_CHECK(read_file_range(slice.file, slice.offset + (from - slice.begin) * element,
                                 out.subspan((from - begin) * element, (to - from) * element)));
  }
  return {};
}

Result<void> Reader::verify() {
  for (std::size_t file = 0; file < files_.size(); ++file) {
    for (std::uint64_t block = 0; block < files_[file].crcs.size(); ++block)
      MUSTER_CHECK(load_block(file, block));
  }
  return {};
}

namespace {

struct Step {
  std::int64_t number = 0;
  std::string path;
  bool finished = false;
};

// Newest first. A folder that is not there has no steps.
Result<std::vector<Step>> steps_in(const std::string& folder) {
  std::vector<Step> steps;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), last; !error && it != last;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto number =
        name.starts_with("step-") ? parse_int(std::string_view(name).substr(5)) : std::nullopt;
    if (!number || *number < 0) continue;
    const bool finished = access((it->path() / kManifestName).c_str(), F_OK) == 0;
    steps.push_back({*number, it->path().string(), finished});
  }
  if (error && error != std::errc::no_such_file_or_directory) return fail_errno(folder, error.value());
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.number > b.number; });
  return steps;
}

// Several nodes may remove the same step of a shared folder at once: what is gone already is well.
Result<void> remove_step(const Step& step) {
  const std::string manifest = step.path + "/" + kManifestName;
  if (unlink(manifest.c_str()) != 0 && errno != ENOENT) return fail_errno("remove " + manifest);
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(step.path, error), last; !error && it != last;
       it.increment(error)) {
    names.push_back(it->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail_errno("remove " + step.path, error.value());
  for (const std::string& name : names) {
    if (unlink(name.c_str()) != 0 && errno != ENOENT) return fail_errno("remove " + name);
  }
  if (rmdir(step.path.c_str()) != 0 && errno != ENOENT) return fail_errno("remove " + step.path);
  return {};
}

}  // namespace

Result<std::vector<StepEntry>> list_checkpoints(const std::string& folder, bool deep) {
  MUSTER_TRY(const auto steps, steps_in(folder));
  std::vector<StepEntry> entries;
  for (const Step& step : steps) {
    StepEntry entry{
        .step = step.number, .path = step.path, .finished = step.finished, .problem = std::nullopt};
    if (step.finished) {
      auto reader = Reader::open(step.path);
      auto checked =
          reader ? (deep ? reader->verify() : Result<void>()) : Result<void>(tl::unexpected(reader.error()));
      if (!checked) entry.problem = checked.error();
      if (checked) entry.bytes = reader->bytes();
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<Latest> latest_checkpoint(const std::string& folder) {
  MUSTER_TRY(const auto steps, steps_in(folder));
  Latest latest;
  std::string damaged;
  for (const Step& step : steps) {
    auto reader = Reader::open(step.path);
    auto checked = reader ? reader->verify() : Result<void>(tl::unexpected(reader.error()));
    if (checked) {
      latest.reader = std::move(*reader);
      return latest;
    }
    latest.notices.push_back("step " + std::to_string(step.number) +
                             " passed over: " + checked.error().message);
    if (step.finished) damaged += (damaged.empty() ? "" : "; ") + checked.error().message;
  }
  if (damaged.empty()) return latest;
  return fail(ErrorCode::corrupt,
              "no checkpoint in " + folder + " is usable: " + damaged +
                  ". Bring the files back, or choose another checkpoint.dir to start over");
}

Result<void> prune_checkpoints(const std::string& folder, int keep) {
  MUSTER_ASSERT(keep >= 1);
  MUSTER_TRY(const auto steps, steps_in(folder));
  int finished = 0;
  for (const Step& step : steps) {
    if (step.finished ? ++finished > keep : finished > 0) MUSTER_CHECK(remove_step(step));
  }
  return {};
}

}  // namespace muster::train
