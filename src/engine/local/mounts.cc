#include "engine/local/mounts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/file.h"

namespace muster::engine::local {

namespace {

constexpr const char* kOpt = "/opt";

// A path that leads through a descriptor: to what was there before it was covered.
std::string through(int fd, const std::string& name) {
  return "/proc/self/fd/" + std::to_string(fd) + "/" + name;
}

Result<void> bind_mount(const std::string& source, const std::string& target) {
  // Recursive: in a user namespace a bind that would leave submounts behind is refused.
  if (::mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0) return {};
  return fail_errno("mount --rbind on " + target);
}

Result<std::vector<std::string>> children(const std::string& path) {
  struct Close {
    void operator()(DIR* dir) const { ::closedir(dir); }
  };
  const std::unique_ptr<DIR, Close> dir(::opendir(path.c_str()));
  if (!dir) return fail_errno("cannot list " + path);
  std::vector<std::string> names;
  while (const auto* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  return names;
}

// Puts `name` of the old /opt into the new one.
Result<void> bring_back(int old_opt, const std::string& name) {
  const auto target = std::string(kOpt) + "/" + name;
  struct stat info {};
  if (::fstatat(old_opt, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return fail_errno("stat " + target);
  if (S_ISLNK(info.st_mode)) {
    char link[4096];
    const auto length = ::readlinkat(old_opt, name.c_str(), link, sizeof link - 1);
    if (length < 0) return fail_errno("readlink " + target);
    link[length] = '\0';
    return ::symlink(link, target.c_str()) == 0 ? Result<void>{} : fail_errno("symlink " + target);
  }
  if (S_ISDIR(info.st_mode)) {
    if (::mkdir(target.c_str(), 0755) != 0) return fail_errno("mkdir " + target);
  } else {
    MUSTER_TRY(const auto made, open_file(target, O_WRONLY | O_CREAT | O_EXCL, 0644));
  }
  return bind_mount(through(old_opt, name), target);
}

Result<void> own_folder(int folder, const std::string& name) {
  const auto target = std::string(kOpt) + "/" + name;
  if (::mkdir(target.c_str(), 0755) != 0) return fail_errno("mkdir " + target);
  return bind_mount(through(folder, name), target);
}

}  // namespace

Result<void> make_mounts_private() {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) return {};
  return fail_errno("mount --make-rprivate /");
}

Result<void> mount_proc() {
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0) return {};
  return fail_errno("mount /proc");
}

Result<void> mount_shared_memory() {
  if (::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") == 0) return {};
  return fail_errno("mount tmpfs on /dev/shm");
}

Result<void> mount_opt(int folder, std::vector<std::string>& left_out) {
  if (::mkdir(kOpt, 0755) != 0 && errno != EEXIST) {
    return fail_errno("there is no /opt on this machine and it cannot be made: mkdir /opt");
  }
  MUSTER_TRY(const auto old_opt, open_file(kOpt, O_PATH | O_DIRECTORY));
  MUSTER_TRY(const auto names, children(kOpt));
  if (::mount("tmpfs", kOpt, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") != 0) {
    return fail_errno("mount tmpfs on /opt");
  }
  for (const auto& name : names) {
    if (name == "ml" || name == "home") continue;
    if (const auto back = bring_back(old_opt.get(), name); !back) left_out.push_back(back.error().message);
  }
  MUSTER_CHECK(own_folder(folder, "ml"));
  return own_folder(folder, "home");
}

Result<void> mount_hosts(int folder) { return bind_mount(through(folder, "hosts"), "/etc/hosts"); }

Result<void> cover(const std::string& path) {
  for (const auto* never : {"", "/", "/opt", "/proc", "/dev"}) {
    if (path == never)
      return fail(ErrorCode::invalid_argument, "the data directory cannot be '" + path + "'");
  }
  if (::mount("tmpfs", path.c_str(), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "size=4k,mode=0555") == 0) {
    return {};
  }
  return fail_errno("mount tmpfs over " + path);
}

}  // namespace muster::engine::local
