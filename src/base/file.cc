#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/assert.h"
#include "base/text.h"

namespace muster {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode) {
  for (;;) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (fd >= 0) return UniqueFd(fd);
    if (errno != EINTR) return fail_errno("open " + path);
  }
}

namespace {

Result<std::string> read_all(int fd, const std::string& path, std::uint64_t bytes_max) {
  std::string out;
  char buffer[65536];
  for (;;) {
    const auto count = ::read(fd, buffer, sizeof buffer);
    if (count < 0) {
      if (errno == EINTR) continue;
      return fail_errno("read " + path);
    }
    if (count == 0) return out;
    out.append(buffer, static_cast<std::size_t>(count));
    if (out.size() > bytes_max) {
      return fail(ErrorCode::resource_exhausted, path + " is larger than " + format_bytes(bytes_max));
    }
  }
}

Result<void> check_regular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return {};
  return fail(ErrorCode::invalid_argument, path + " is " +
                                               (S_ISDIR(mode)    ? "a folder"
                                                : S_ISFIFO(mode) ? "a FIFO"
                                                                 : "a device or a socket") +
                                               "; a regular file is needed");
}

}  // namespace

Result<std::string> read_file(const std::string& path, std::uint64_t bytes_max) {
  MUSTER_TRY(const auto fd, open_file(path, O_RDONLY));
  return read_all(fd.get(), path, bytes_max);
}

Result<std::string> read_regular_file(const std::string& path, std::uint64_t bytes_max) {
  MUSTER_TRY(const auto fd, open_file(path, O_RDONLY | O_NONBLOCK));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("stat " + path);
  MUSTER_CHECK(check_regular(path, info.st_mode));
  return read_all(fd.get(), path, bytes_max);
}

Result<void> check_regular(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail_errno("stat " + path);
  return check_regular(path, info.st_mode);
}

Result<void> write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const auto count = ::write(fd, data.data(), data.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return fail_errno("write");
    }
    data.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Result<void> write_file_atomic(const std::string& path, std::string_view data, mode_t mode) {
  const auto temporary = path + ".tmp-" + std::to_string(::getpid());
  const auto write = [&]() -> Result<void> {
    MUSTER_TRY(auto fd, open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC, mode));
    MUSTER_CHECK(write_all(fd.get(), data));
    if (::fsync(fd.get()) != 0) return fail_errno("fsync " + temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) return fail_errno("rename to " + path);
    return {};
  };
  auto written = write();
  if (!written) {
    ::unlink(temporary.c_str());
    return tl::unexpected(written.error().with_context("cannot write " + path));
  }
  return sync_directory(std::filesystem::path(path).parent_path().string());
}

Result<void> make_directories(const std::string& path, mode_t mode) {
  for (std::size_t at = 0; at != std::string::npos;) {
    at = path.find('/', at + 1);
    const auto part = path.substr(0, at);
    if (part.empty()) continue;
    if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) {
      const int why = errno;
      struct stat info {};
      if (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;  // EROFS, EACCES on a parent
      return fail_errno("mkdir " + part, why);
    }
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail_errno("stat " + path);
  if (!S_ISDIR(info.st_mode)) return fail(ErrorCode::already_exists, path + " exists and is not a folder");
  return {};
}

Result<void> sync_directory(const std::string& path) {
  MUSTER_TRY(auto fd, open_file(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) return fail_errno("fsync " + path);
  return {};
}

Result<FileLock> FileLock::acquire(const std::string& path) {
  MUSTER_TRY(auto fd, open_file(path, O_RDWR | O_CREAT, 0644));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return fail(ErrorCode::failed_precondition, path + " is locked by another process");
    }
    if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS) {
      return fail(ErrorCode::unsupported, path + ": this file system has no locks");
    }
    return fail_errno("flock " + path);
  }
  return FileLock(std::move(fd));
}

TempDir::TempDir() {
  const char* base = std::getenv("TMPDIR");
  path_ = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/muster-XXXXXX";
  MUSTER_ASSERT(::mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace muster
