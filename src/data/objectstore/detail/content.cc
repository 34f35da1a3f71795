#include "data/objectstore/detail/content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/text.h"

namespace muster::objectstore {
namespace {

// Dirty pages are handed to the disk every so often, so that the fsync at the end is short.
constexpr std::uint64_t kFlushBytes = 8 << 20;
// Files below are not worth a reservation.
constexpr std::uint64_t kReserveBytes = 1 << 20;

std::string name_of(std::int64_t id) {
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(id));
  return name;
}

ports::ObjectError write_failure(std::string_view doing, int error_number) {
  auto error = fail_errno(doing, error_number).value();
  if (error_number == ENOSPC || error_number == EDQUOT) {
    error.message += "; delete objects or old jobs (muster prune), or give the data directory more room";
    return {ports::ObjectFault::storage_full, std::move(error)};
  }
  return {std::move(error)};
}

}  // namespace

Result<ContentFolder> ContentFolder::open(const std::string& directory, bool sync) {
  MUSTER_CHECK(make_directories(directory + "/incoming", 0700));
  if (sync) MUSTER_CHECK(sync_directory(directory));
  return ContentFolder(directory, sync);
}

std::string ContentFolder::incoming(std::int64_t id) const { return directory_ + "/incoming/" + name_of(id); }

std::string ContentFolder::settled(std::int64_t id) const {
  const auto name = name_of(id);
  return directory_ + "/" + name.substr(name.size() - 2) + "/" + name;  // low digits: even spread
}

ContentFolder::Incoming::Incoming(Incoming&& other) noexcept
    : folder_(other.folder_),
      id_(other.id_),
      file_(std::move(other.file_)),
      written_(other.written_),
      flushed_(other.flushed_),
      left_(std::exchange(other.left_, true)) {}

ContentFolder::Incoming::~Incoming() {
  if (!left_) ::unlink(folder_->incoming(id_).c_str());
}

ports::ObjectResult<void> ContentFolder::Incoming::write(std::string_view data) {
  while (!data.empty()) {
    const auto count = ::write(file_.get(), data.data(), data.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return tl::unexpected(write_failure("write an object's content", errno));
    }
    data.remove_prefix(static_cast<std::size_t>(count));
    written_ += static_cast<std::uint64_t>(count);
  }
  if (folder_->sync_ && written_ - flushed_ >= kFlushBytes) {
    ::sync_file_range(file_.get(), static_cast<off_t>(flushed_), static_cast<off_t>(written_ - flushed_),
                      SYNC_FILE_RANGE_WRITE);  // a hint: finish() is what counts
    flushed_ = written_;
  }
  return {};
}

ports::ObjectResult<void> ContentFolder::Incoming::finish() {
  if (folder_->sync_ && ::fdatasync(file_.get()) != 0) {
    return tl::unexpected(write_failure("fdatasync of an object's content", errno));
  }
  file_.reset();
  return {};
}

void ContentFolder::Incoming::settle() {
  left_ = true;
  // A failure is harmless: open_file() and the next start look into incoming/ too.
  static_cast<void>(folder_->move_in(id_));
}

ports::ObjectResult<ContentFolder::Incoming> ContentFolder::create(std::int64_t id,
                                                                   std::optional<std::uint64_t> size) const {
  MUSTER_TRY(auto file, muster::open_file(incoming(id), O_WRONLY | O_CREAT | O_EXCL, 0600));
  Incoming made(*this, id, std::move(file));
  if (size && *size >= kReserveBytes) {
    if (::fallocate(made.file_.get(), 0, 0, static_cast<off_t>(*size)) != 0 &&
        (errno == ENOSPC || errno == EDQUOT)) {
      return tl::unexpected(write_failure("reserve " + format_bytes(*size) + " for an object", errno));
    }
  }
  return made;
}

Result<void> ContentFolder::sync_names() const {
  if (!sync_) return {};
  return sync_directory(directory_ + "/incoming");
}

Result<void> ContentFolder::move_in(std::int64_t id) const {
  const auto from = incoming(id);
  const auto to = settled(id);
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  if (errno != ENOENT) return fail_errno("settle " + from);
  MUSTER_CHECK(make_directories(std::filesystem::path(to).parent_path().string(), 0700));
  if (::rename(from.c_str(), to.c_str()) != 0) return fail_errno("settle " + from);
  return {};
}

Result<UniqueFd> ContentFolder::open_file(std::int64_t id, std::uint64_t bytes) const {
  auto file = muster::open_file(settled(id), O_RDONLY);
  const auto absent = [&] { return !file && file.error().code == ErrorCode::not_found; };
  if (absent()) file = muster::open_file(incoming(id), O_RDONLY);
  if (absent()) file = muster::open_file(settled(id), O_RDONLY);  // moved between the two looks
  if (!file) return file;
  struct stat info {};
  if (::fstat(file->get(), &info) != 0) return fail_errno("look at " + settled(id));
  if (static_cast<std::uint64_t>(info.st_size) >= bytes) return file;
  return fail(ErrorCode::corrupt,
              settled(id) + " has " + std::to_string(info.st_size) + " bytes of " + std::to_string(bytes));
}

Result<void> ContentFolder::remove(std::int64_t id) const {
  for (const auto& path : {settled(id), incoming(id)}) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno("unlink " + path);
  }
  return {};
}

Result<void> ContentFolder::sweep(const std::function<Result<bool>(std::int64_t)>& committed) const {
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/incoming", failure)) {
    const auto name = entry.path().filename().string();
    std::int64_t id = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), id, 16);
    if (code != std::errc{} || end != name.data() + name.size()) continue;  // not ours
    MUSTER_TRY(const bool keep, committed(id));
    if (keep) {
      MUSTER_CHECK(move_in(id));
    } else if (::unlink(incoming(id).c_str()) != 0) {
      return fail_errno("remove " + incoming(id));
    }
  }
  if (failure) return fail(ErrorCode::io, "list " + directory_ + "/incoming: " + failure.message());
  return {};
}

}  // namespace muster::objectstore
