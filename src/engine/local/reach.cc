#include "engine/local/reach.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "engine/local/trial.h"

namespace muster::engine::local {

namespace {

namespace fs = std::filesystem;

bool may_pass(const JobUser& user, const std::string& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return false;
  if (info.st_uid == user.uid) return (info.st_mode & S_IXUSR) != 0;
  const bool in_group = std::find(user.groups.begin(), user.groups.end(), info.st_gid) != user.groups.end();
  return (info.st_mode & (in_group ? S_IXGRP : S_IXOTH)) != 0;
}

// A folder to be reached, held open from before anything is covered.
struct Way {
  std::string path;
  std::string closed;  // the folder that is in the way
  UniqueFd folder;
};

// Makes the folders from below `way.closed`, where there are none yet, and puts the real one at their end.
Result<void> lead_to(const Way& way) {
  fs::path at = way.closed;
  for (const auto& part : fs::path(way.path).lexically_relative(way.closed)) {
    at /= part;
    if (::mkdir(at.c_str(), 0755) == 0) {
      if (::chmod(at.c_str(), 0755) != 0) return fail_errno("chmod " + at.string());  // whatever the umask is
    } else if (errno != EEXIST) {
      return fail_errno("mkdir " + at.string());
    }
  }
  const auto source = "/proc/self/fd/" + std::to_string(way.folder.get());
  if (::mount(source.c_str(), way.path.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0) return {};
  return fail_errno("mount --rbind on " + way.path);
}

}  // namespace

std::string barrier(const JobUser& user, const std::string& path) {
  fs::path at;
  for (const auto& part : fs::path(path)) {
    at /= part;
    if (!may_pass(user, at.string())) return at.string();
  }
  return {};
}

std::vector<std::string> beyond_reach(const JobUser& user, const std::vector<std::string>& programs) {
  std::set<std::string> folders;
  for (const auto& program : programs) {
    for (const auto& file : files_loaded_by(program)) {
      // By its name and by where that leads: both must be passed.
      std::error_code error;
      const auto real = fs::canonical(file, error);
      for (const auto& path : {fs::path(file), error ? fs::path(file) : real}) {
        const auto folder = path.parent_path().lexically_normal().string();
        if (!barrier(user, folder).empty()) folders.insert(folder);
      }
    }
  }
  return {folders.begin(), folders.end()};
}

Result<void> open_ways(const JobUser& user, std::vector<std::string> folders) {
  std::sort(folders.begin(), folders.end());  // a folder before those inside it
  std::vector<Way> ways;
  std::set<std::string> closed;
  for (const auto& path : folders) {
    auto in_the_way = barrier(user, path);
    if (in_the_way.empty() || in_the_way == path || in_the_way == "/") continue;
    MUSTER_TRY(auto folder, open_file(path, O_PATH | O_DIRECTORY));
    closed.insert(in_the_way);
    ways.push_back({.path = path, .closed = std::move(in_the_way), .folder = std::move(folder)});
  }
  for (const auto& path : closed) {
    if (::mount("tmpfs", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") != 0) {
      return fail_errno("mount tmpfs over " + path);
    }
  }
  for (const auto& way : ways) MUSTER_CHECK(lead_to(way));
  return {};
}

}  // namespace muster::engine::local
