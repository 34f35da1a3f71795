#include "data/s3/detail/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "base/crypto.h"
#include "base/text.h"

namespace muster::data::s3::detail {
namespace {

// One folder below `at`: through links only as long as they stay below `at`.
int open_folder(int at, const char* path) {
  static std::atomic<bool> has_openat2{true};
  if (has_openat2) {
    open_how how{};
    how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    const auto fd = ::syscall(SYS_openat2, at, path, &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno != ENOSYS && errno != EPERM) return -1;
    has_openat2 = false;
  }
  UniqueFd current(::fcntl(at, F_DUPFD_CLOEXEC, 0));
  for (const auto part : split(path, '/')) {
    const int next =
        ::openat(current.get(), std::string(part).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0) return -1;
    current = UniqueFd(next);
  }
  return current.release();
}

tl::unexpected<Error> cannot_enter(const std::string& path, int why) {
  if (why == ENOTDIR) {
    return fail(ErrorCode::already_exists,
                "\"" + path + "\" is a file, and must be a folder for what is below it");
  }
  if (why == EXDEV || why == ELOOP) {
    return fail(ErrorCode::permission_denied, "\"" + path + "\" leads out of the folder through a link");
  }
  return fail_errno("open folder " + path, why);
}

std::string_view kind_of(mode_t mode) {
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "no regular file";
}

}  // namespace

Result<void> check_replaceable(mode_t mode, const std::string& shown) {
  if (S_ISREG(mode) || S_ISLNK(mode) || S_ISDIR(mode)) return {};
  return fail(ErrorCode::invalid_argument,
              "\"" + shown + "\" is " + std::string(kind_of(mode)) +
                  ", and an object replaces regular files only; give another path");
}

NewFile::~NewFile() {
  if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

Result<void> NewFile::reserve(std::uint64_t size) {
  if (size == 0) return {};
  if (::fallocate(file_.get(), 0, 0, static_cast<off_t>(size)) == 0) return {};
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return {};
  return fail_errno("reserve " + format_bytes(size) + " for " + name_);
}

Result<void> NewFile::write_at(std::string_view data, std::uint64_t offset) {
  while (!data.empty()) {
    const auto count = ::pwrite(file_.get(), data.data(), data.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_errno("write " + name_);
    data.remove_prefix(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<void> NewFile::truncate(std::uint64_t size) {
  if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) return fail_errno("truncate " + name_);
  return {};
}

Result<void> NewFile::commit() {
  if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) {
    if (errno == EISDIR || errno == ENOTEMPTY || errno == EEXIST) {
      return fail(ErrorCode::already_exists, "\"" + name_ + "\" is a folder, and must be a file");
    }
    return fail_errno("rename to " + name_);
  }
  temporary_.clear();
  return {};
}

Result<Folder> Folder::open(const std::string& root) {
  MUSTER_CHECK(make_directories(root));
  MUSTER_TRY(auto fd, open_file(root, O_RDONLY | O_DIRECTORY));
  return Folder(std::move(fd));
}

Result<UniqueFd> Folder::enter(const std::string& path) const {
  if (path.empty()) {
    UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) return fail_errno("open folder");
    return copy;
  }
  if (const int fd = open_folder(fd_.get(), path.c_str()); fd >= 0) return UniqueFd(fd);
  if (errno != ENOENT) return cannot_enter(path, errno);
  // Make what is missing, one component at a time, each below the one before.
  UniqueFd current(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  std::string so_far;
  for (const auto part : split(path, '/')) {
    so_far += (so_far.empty() ? "" : "/") + std::string(part);
    if (::mkdirat(current.get(), std::string(part).c_str(), 0777) != 0 && errno != EEXIST) {
      return fail_errno("make folder " + so_far);
    }
    const int next = open_folder(fd_.get(), so_far.c_str());
    if (next < 0) return cannot_enter(so_far, errno);
    current = UniqueFd(next);
  }
  return current;
}

Result<void> Folder::make_folder(const std::string& path) const {
  MUSTER_CHECK(enter(path));
  return {};
}

Result<NewFile> Folder::create(const std::string& path) const {
  const auto slash = path.rfind('/');
  MUSTER_TRY(auto folder, enter(slash == std::string::npos ? "" : path.substr(0, slash)));
  auto name = slash == std::string::npos ? path : path.substr(slash + 1);
  struct stat there {};
  if (::fstatat(folder.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) {
    MUSTER_CHECK(check_replaceable(there.st_mode, path));
  }
  auto temporary = std::string(kTemporaryPrefix) + crypto::random_token(12);
  const int fd = ::openat(folder.get(), temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return fail_errno("create a file for " + path);
  return NewFile(std::move(folder), UniqueFd(fd), std::move(temporary), std::move(name));
}

}  // namespace muster::data::s3::detail
