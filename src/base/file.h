// Files and descriptors: RAII, whole reads, writes complete or absent. Functions: any thread; objects: one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace muster {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// open(2) with O_CLOEXEC, retried on EINTR; the error names the path.
Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode = 0666);

// The whole file; refused above `bytes_max` so that no reader is surprised by a huge file.
Result<std::string> read_file(const std::string& path, std::uint64_t bytes_max = 64ULL << 20);

// The same of what has to be a regular file; errors of check_regular(). A FIFO does not hold the caller up.
Result<std::string> read_regular_file(const std::string& path, std::uint64_t bytes_max = 64ULL << 20);

// invalid_argument when it is something else than a regular file: a folder would be read as nothing, a FIFO
// without end. not_found when there is none.
Result<void> check_regular(const std::string& path);

// Writes all of `data` (retries short writes and EINTR).
Result<void> write_all(int fd, std::string_view data);

// Writes `path` so that a crash leaves the old or the new content: temp file beside it, fsync, rename,
// fsync of the folder.
Result<void> write_file_atomic(const std::string& path, std::string_view data, mode_t mode = 0644);

// mkdir -p. Existing folders are fine.
Result<void> make_directories(const std::string& path, mode_t mode = 0755);

// fsync of a folder, so that a rename or creation in it is durable.
Result<void> sync_directory(const std::string& path);

// An exclusive flock held as long as the object lives, or until the process is dead. The file is made if need
// be and stays. failed_precondition: another process holds it; unsupported: the file system has no locks.
class FileLock {
 public:
  static Result<FileLock> acquire(const std::string& path);
  int fd() const { return fd_.get(); }

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// A folder under $TMPDIR, removed with its content by the destructor. For tests and scratch work.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace muster
