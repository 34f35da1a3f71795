#include "runner/transfer/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>

#include "base/text.h"

namespace muster::runner {
namespace {

// A path for a person: its middle is left out, so that a remedy after it fits into a failure reason.
std::string short_path(const std::string& path) {
  constexpr std::size_t kEnd = 120;
  if (path.size() <= 2 * kEnd) return to_utf8_lossy(path);
  return to_utf8_lossy(path.substr(0, kEnd)) + "..." + to_utf8_lossy(path.substr(path.size() - kEnd));
}

// Why a file of the job cannot be taken along, and what its author can do. The job's fault, all of it.
tl::unexpected<Error> unreadable(const std::string& path, int error_number) {
  const auto what = "cannot read " + short_path(path) + ": ";
  constexpr std::string_view kElsewhere = ", or write it outside this folder";
  if (error_number == ENAMETOOLONG) {
    return fail(ErrorCode::invalid_argument, what + "its path has " + std::to_string(path.size()) +
                                                 " bytes, at most " + std::to_string(PATH_MAX - 1) +
                                                 " can be opened; write to a shorter path" +
                                                 std::string(kElsewhere));
  }
  auto refused = fail_errno("cannot read " + short_path(path), error_number);
  auto& error = refused.value();
  if (error.code == ErrorCode::permission_denied) {
    error.message += "; make it readable (chmod u+rX) before the command ends" + std::string(kElsewhere);
  }
  return refused;
}

Result<UniqueFd> open_below(int root, const std::string& name, std::uint64_t flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = flags | O_CLOEXEC;
  how.resolve = resolve;
  for (;;) {
    const auto fd = ::syscall(SYS_openat2, root, name.c_str(), &how, sizeof how);
    if (fd >= 0) return UniqueFd(static_cast<int>(fd));
    if (errno != EINTR && errno != EAGAIN) return unreadable(name, errno);
  }
}

TreeEntry::Kind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return TreeEntry::Kind::file;
  if (S_ISDIR(mode)) return TreeEntry::Kind::folder;
  if (S_ISLNK(mode)) return TreeEntry::Kind::link;
  return TreeEntry::Kind::other;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

Result<std::vector<std::string>> names_in(const UniqueFd& folder) {
  // A descriptor of its own: readdir moves the offset.
  UniqueFd copy(::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) return fail_errno("open a folder");
  std::unique_ptr<DIR, CloseDirectory> directory(::fdopendir(copy.get()));
  if (!directory) return fail_errno("open a folder");
  (void)copy.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const auto* entry = ::readdir(directory.get());
    if (entry == nullptr) {
      if (errno != 0) return fail_errno("list a folder");
      break;
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<Tree> Tree::open(const std::string& path) {
  constexpr std::string_view kOptMl = "/opt/ml";
  UniqueFd root;
  if (path.substr(0, kOptMl.size() + 1) == std::string(kOptMl) + "/") {
    MUSTER_TRY(auto base, muster::open_file(std::string(kOptMl), O_RDONLY | O_DIRECTORY));
    auto opened = open_below(base.get(), path.substr(kOptMl.size() + 1), O_RDONLY | O_DIRECTORY,
                             RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (!opened) return tl::unexpected(opened.error().with_context(path));
    root = *std::move(opened);
  } else {
    MUSTER_TRY(root, muster::open_file(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  }
  return Tree(path, std::move(root));
}

Result<std::vector<TreeEntry>> Tree::list() const {
  std::vector<TreeEntry> out;
  auto listed = list_into(root_, "", 1, out);
  if (!listed) return tl::unexpected(listed.error().with_context(path_));
  return out;
}

Result<void> Tree::list_into(const UniqueFd& folder, const std::string& prefix, int depth,
                             std::vector<TreeEntry>& out) const {
  if (depth > kDepthMax) {
    return fail(ErrorCode::invalid_argument,
                short_path(prefix) + " is nested more than " + std::to_string(kDepthMax) +
                    " folders deep; write to fewer levels, or outside this folder");
  }
  MUSTER_TRY(const auto names, names_in(folder));
  for (const auto& name : names) {
    struct stat info {};
    if (::fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;  // gone meanwhile
    TreeEntry entry;
    entry.name = prefix + name;
    entry.kind = kind_of(info.st_mode);
    entry.bytes = static_cast<std::uint64_t>(info.st_size);
    entry.modified_ns = info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec;
    entry.mode = info.st_mode & 07777U;
    if (entry.kind == TreeEntry::Kind::link) {
      char target[PATH_MAX];
      const auto length = ::readlinkat(folder.get(), name.c_str(), target, sizeof target);
      if (length < 0) continue;
      entry.target.assign(target, static_cast<std::size_t>(length));
    }
    const bool descend = entry.kind == TreeEntry::Kind::folder;
    const auto below = entry.name + "/";
    out.push_back(std::move(entry));
    if (!descend) continue;
    UniqueFd inner(::openat(folder.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!inner) {
      if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) continue;
      return unreadable(below, errno);
    }
    MUSTER_CHECK(list_into(inner, below, depth + 1, out));
  }
  return {};
}

Result<UniqueFd> Tree::open_file(std::string_view name) const {
  // O_NONBLOCK: a FIFO must not hold the runner up.
  auto file = open_below(root_.get(), std::string(name), O_RDONLY | O_NONBLOCK,
                         RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
  if (!file) return tl::unexpected(file.error().with_context(path_));
  struct stat info {};
  if (::fstat(file->get(), &info) != 0) return fail_errno("stat " + std::string(name));
  if (!S_ISREG(info.st_mode)) {
    return fail(ErrorCode::unsupported, std::string(name) + " is not a regular file");
  }
  return file;
}

std::string read_small(const Tree& tree, std::string_view name, std::size_t bytes_max) {
  const auto file = tree.open_file(name);
  if (!file) return {};
  std::string out(bytes_max, '\0');
  const auto count = ::pread(file->get(), out.data(), out.size(), 0);
  out.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return out;
}

std::string descriptor_path(const UniqueFd& file) { return "/proc/self/fd/" + std::to_string(file.get()); }

}  // namespace muster::runner
