#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/assert.h"
#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"
#include "train/ckpt/checkpoint.h"
#include "train/ckpt/manifest.h"

namespace muster::train {
namespace {

// The last two parts of a path: step-200/rank-1.bin.
std::string short_path(const std::string& folder, const std::string& name) {
  return folder.substr(folder.rfind('/') + 1) + "/" + name;
}

// corrupt: something else than a file is at `path`, or a link that leads nowhere. A file that is not there is
// left to who opens it.
Result<void> check_is_file(const std::string& path, const std::string& shown) {
  struct stat status {};
  const bool there = stat(path.c_str(), &status) == 0;
  if ((there && !S_ISREG(status.st_mode)) || (!there && errno == ELOOP))
    return fail(ErrorCode::corrupt, shown + " is no file");
  return {};
}

}  // namespace

Result<Reader> Reader::open(const std::string& step_folder) {
  const std::string path = step_folder + "/" + kManifestName;
  MUSTER_CHECK(check_is_file(path, short_path(step_folder, kManifestName)));
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
  if (const auto& info = reader.info_; !step_folder.ends_with("step-" + std::to_string(info.step))) {
    return fail(ErrorCode::corrupt, short_path(step_folder, kManifestName) + " is that of step " +
                                        std::to_string(info.step) + ": a file of another folder");
  }
  MUSTER_CHECK(reader.check_files());
  return reader;
}

Result<void> Reader::parse(const json::Object& manifest) {
  MUSTER_TRY(info_, info_of(manifest));
  const auto* files = json::opt_array(manifest, "files");
  const auto* slices = json::opt_array(manifest, "slices");
  if (files == nullptr || slices == nullptr) return fail(ErrorCode::corrupt, "no files or no slices");
  for (const auto& element : *files) {
    if (!element.is_object()) return fail(ErrorCode::corrupt, "a file is not an object");
    MUSTER_CHECK(parse_file(element.as_object()));
  }
  for (std::size_t i = 0; i < info_.tensors.size(); ++i) tensors_[info_.tensors[i].name].info = i;
  for (const auto& element : *slices) {
    if (!element.is_object()) return fail(ErrorCode::corrupt, "a slice is not an object");
    MUSTER_CHECK(parse_slice(element.as_object()));
  }
  for (auto& [name, tensor] : tensors_) {
    std::sort(tensor.stored.begin(), tensor.stored.end(), [](const Stored& a, const Stored& b) {
      return std::tie(a.slice.box.start, a.slice.flat.begin, a.slice.flat.end) <
             std::tie(b.slice.box.start, b.slice.flat.begin, b.slice.flat.end);
    });
    MUSTER_CHECK(check_cover(tensor));
  }
  return {};
}

Result<void> Reader::parse_file(const json::Object& object) {
  File file;
  MUSTER_TRY(file.name, json::get_string(object, "name"));
  MUSTER_TRY(file.bytes, get_count(object, "bytes"));
  const auto* crcs = json::opt_array(object, "crc32c");
  if (crcs == nullptr || file.name.find('/') != std::string::npos) {
    return fail(ErrorCode::corrupt, "file " + file.name);
  }
  MUSTER_TRY(file.crcs, crcs_from_json(*crcs));
  if (file.crcs.size() != (file.bytes + kBlockBytes - 1) / kBlockBytes) {
    return fail(ErrorCode::corrupt, "file " + file.name + " has the wrong number of checksums");
  }
  file_numbers_[file.name] = files_.size();
  files_.push_back(std::move(file));
  return {};
}

Result<void> Reader::parse_slice(const json::Object& object) {
  MUSTER_TRY(const std::string file, json::get_string(object, "file"));
  MUSTER_TRY(const std::string name, json::get_string(object, "tensor"));
  const auto tensor = tensors_.find(name);
  const auto number = file_numbers_.find(file);
  if (tensor == tensors_.end() || number == file_numbers_.end()) {
    return fail(ErrorCode::corrupt, "a slice of " + name + " in " + file + ": one of the two is not listed");
  }
  const auto& info = info_.tensors[tensor->second.info];
  Stored stored{.file = number->second};
  MUSTER_TRY(stored.slice, slice_from_json(object, info));
  MUSTER_TRY(stored.offset, get_count(object, "offset"));
  MUSTER_CHECK(check_place(info, stored));
  tensor->second.stored.push_back(std::move(stored));
  return {};
}

Result<void> Reader::check_place(const TensorInfo& tensor, const Stored& stored) const {
  const auto bytes = static_cast<std::uint64_t>(stored.slice.numel()) * tensor.element_bytes();
  const auto& file = files_[stored.file];
  if (stored.offset <= file.bytes && bytes <= file.bytes - stored.offset) return {};
  return fail(ErrorCode::corrupt, "a slice of " + tensor.name + " ends behind its file " + file.name);
}

// Every element is stored exactly once: the boxes do not meet, each is full, and together they are as big as
// the tensor.
Result<void> Reader::check_cover(const Tensor& tensor) const {
  const auto& info = info_.tensors[tensor.info];
  std::vector<const Box*> boxes;
  std::int64_t covered = 0;  // of the last box
  std::uint64_t total = 0;
  const auto gap = [&](std::int64_t element) {
    return fail(ErrorCode::corrupt, "the slices of " + info.name + " overlap or leave a gap at element " +
                                        std::to_string(element));
  };
  for (const auto& stored : tensor.stored) {
    const auto& [name, box, flat] = stored.slice;
    if (boxes.empty() || *boxes.back() != box) {
      if (!boxes.empty() && covered != boxes.back()->numel()) return gap(covered);
      for (const auto* other : boxes) {
        if (meet(*other, box)) return fail(ErrorCode::corrupt, "the slices of " + info.name + " overlap");
      }
      boxes.push_back(&box);
      covered = 0;
    }
    if (flat.begin != covered) return gap(covered);
    covered = flat.end;
    total += static_cast<std::uint64_t>(flat.size());
  }
  if (!boxes.empty() && covered != boxes.back()->numel()) return gap(covered);
  if (total == info.numel()) return {};
  return fail(ErrorCode::corrupt, "only " + std::to_string(total) + " of " + std::to_string(info.numel()) +
                                      " elements of " + info.name + " are there");
}

Result<void> Reader::check_files() const {
  for (const File& file : files_) {
    MUSTER_CHECK(check_is_file(folder_ + "/" + file.name, short_path(folder_, file.name)));
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
    return fail(ErrorCode::corrupt,
                short_path(folder_, file.name) + ": block " + std::to_string(block) + " (bytes " +
                    std::to_string(begin) + " to " + std::to_string(begin + block_.size() - 1) +
                    ") is altered: its checksum is " + hex8(crc) + ", stored is " + hex8(file.crcs[block]));
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

Result<void> Reader::read(const Slice& slice, std::span<std::byte> out) {
  const auto found = tensors_.find(slice.tensor);
  if (found == tensors_.end()) {
    return fail(ErrorCode::not_found, "the checkpoint has no tensor " + slice.tensor);
  }
  const auto& info = info_.tensors[found->second.info];
  MUSTER_CHECK(check_within(slice, info));
  const auto element = info.element_bytes();
  MUSTER_ASSERT(out.size() == static_cast<std::size_t>(slice.numel()) * element);
  for (const auto& stored : found->second.stored) {
    for (const auto& run : intersect(stored.slice, slice)) {
      const auto from = stored.offset + static_cast<std::uint64_t>(run.a) * element;
      MUSTER_CHECK(read_file_range(stored.file, from,
                                   out.subspan(static_cast<std::size_t>(run.b) * element,
                                               static_cast<std::size_t>(run.count) * element)));
    }
  }
  return {};
}

Result<void> Reader::verify(int part, int parts, const std::function<void(std::uint64_t)>& look) {
  std::uint64_t number = 0;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    for (std::uint64_t block = 0; block < files_[file].crcs.size(); ++block) {
      if (number++ % static_cast<std::uint64_t>(parts) != static_cast<std::uint64_t>(part)) continue;
      MUSTER_CHECK(load_block(file, block));
      if (look) look(block_.size());
    }
  }
  return {};
}

}  // namespace muster::train
