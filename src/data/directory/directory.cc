#include "data/directory/directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/json.h"
#include "base/text.h"

namespace muster::data {
namespace {

constexpr std::string_view kFormat = "1";
constexpr std::size_t kPidLength = 10;  // digits of the largest

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<std::string> read_line(const std::string& path) {
  const auto text = read_file(path, 4096);
  if (!text) return std::nullopt;
  return std::string(trim(*text));
}

// On a full disk a file that is as it shall be needs no room.
Result<void> keep_line(const std::string& path, const std::string& line) {
  if (read_line(path) == line) return {};
  return write_file_atomic(path, line + "\n");
}

Result<void> check_format(const std::string& path) {
  const auto format = read_file(path + "/FORMAT", 4096);
  if (!format && format.error().code == ErrorCode::not_found)
    return fail(ErrorCode::not_found, "no service was ever started on " + path +
                                          "; start one with: muster up --detach" +
                                          (path == DataDirectory::default_path() ? "" : " --data " + path));
  if (!format) return tl::unexpected(format.error().with_context("cannot read " + path));
  const std::string number(trim(*format));
  if (number != kFormat) {
    return fail(ErrorCode::unsupported, path + " has layout " + number + ", this version reads layout " +
                                            std::string(kFormat) +
                                            "; use the Muster that wrote it, or another --data");
  }
  return {};
}

// What may lie in a folder that becomes a data directory: the user's configuration, what a new file system
// has, and what a crash can leave of the write of FORMAT, which is the first one.
bool may_be_there(std::string_view name) {
  return name == "muster.toml" || name == "lost+found" || name.starts_with("FORMAT.tmp-");
}

Result<void> check_nothing_foreign(const std::string& path) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (may_be_there(name)) continue;
    return fail(ErrorCode::failed_precondition,
                "it is no data directory of Muster (there is no FORMAT) and not empty: it has " + name +
                    "; give a new or an empty folder");
  }
  if (error) return fail_errno("list " + path, error.value());
  return {};
}

// Makes the folder ours alone. Another user who may write to it could put keys in, or exchange them.
Result<void> make_private(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail_errno("stat " + path);
  if (info.st_uid != ::geteuid()) {
    return fail(ErrorCode::permission_denied, "it belongs to user " + std::to_string(info.st_uid) +
                                                  ", not to " + std::to_string(::geteuid()) +
                                                  ", who starts the service; give a folder of your own");
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return fail(ErrorCode::permission_denied,
                "everybody may write to it; give a new folder, or make it private with: chmod 700 " + path);
  }
  if ((info.st_mode & 07777) != 0700 && ::chmod(path.c_str(), 0700) != 0) return fail_errno("chmod " + path);
  return {};
}

// Turns a new or empty folder into a data directory. FORMAT goes first, so that after a crash at any point
// the folder is known as Muster's or is still empty.
Result<void> take_folder(const std::string& path) {
  MUSTER_CHECK(check_nothing_foreign(path));
  MUSTER_CHECK(make_private(path));
  MUSTER_CHECK(check_nothing_foreign(path));  // what came before it was private
  return write_file_atomic(path + "/FORMAT", std::string(kFormat) + "\n");
}

// keys/ that others may enter would show what is written there, whatever its own mode.
Result<void> check_keys_private(const std::string& keys) {
  struct stat info {};
  if (::stat(keys.c_str(), &info) != 0) return fail_errno("stat " + keys);
  if ((info.st_mode & 077) == 0) return {};
  return fail(ErrorCode::permission_denied,
              keys + " may be read by others; make it private with: chmod 700 " + keys);
}

}  // namespace

std::string DataDirectory::default_path() {
  if (auto path = environment("MUSTER_DATA"); !path.empty()) return path;
  if (auto base = environment("XDG_DATA_HOME"); !base.empty()) return base + "/muster";
  const auto home = environment("HOME");
  return (home.empty() ? "/var/lib" : home + "/.local/share") + "/muster";
}

Result<DataDirectory> DataDirectory::open_or_create(const std::string& path) {
  const auto absolute = std::filesystem::absolute(path).lexically_normal().string();
  const auto remedy = [&](const Error& error) {
    return tl::unexpected(error.with_context(
        "cannot use " + absolute + " as data directory (choose one with --data DIR or MUSTER_DATA)"));
  };
  if (auto made = make_directories(absolute, 0700); !made) return remedy(made.error());
  auto known = check_format(absolute);
  if (!known && known.error().code == ErrorCode::not_found) {
    known = take_folder(absolute);
    if (!known) return remedy(known.error());
  }
  MUSTER_CHECK(known);
  DataDirectory directory(absolute);
  for (const auto& part :
       {directory.keys(), directory.state(), directory.objects(), directory.logs(), directory.run()}) {
    if (auto made = make_directories(part, 0700); !made) return remedy(made.error());
  }
  MUSTER_CHECK(check_keys_private(directory.keys()));
  return directory;
}

Result<DataDirectory> DataDirectory::open(const std::string& path) {
  const auto absolute = std::filesystem::absolute(path).lexically_normal().string();
  MUSTER_CHECK(check_format(absolute));
  return DataDirectory(absolute);
}

Result<FileLock> DataDirectory::lock() const {
  auto lock = FileLock::acquire(path_ + "/lock");
  if (lock || lock.error().code != ErrorCode::failed_precondition) return lock;
  const auto holder = pid();
  return fail(ErrorCode::failed_precondition,
              path_ + " is served by another musterd" +
                  (holder ? " (process " + std::to_string(*holder) + ")" : "") +
                  (endpoint() ? " at " + *endpoint() : "") +
                  "; stop it with `muster down`, or choose another --data");
}

std::optional<std::string> DataDirectory::endpoint() const { return read_line(path_ + "/endpoint"); }

Result<void> DataDirectory::write_endpoint(const std::string& url) const {
  return keep_line(path_ + "/endpoint", url);
}

std::optional<std::string> DataDirectory::region() const { return read_line(path_ + "/region"); }

Result<void> DataDirectory::write_region(const std::string& region) const {
  return keep_line(path_ + "/region", region);
}

std::optional<int> DataDirectory::pid() const {
  const auto line = read_line(path_ + "/musterd.pid");
  if (!line) return std::nullopt;
  const auto number = parse_int(*line);
  if (!number || *number <= 0) return std::nullopt;
  return static_cast<int>(*number);
}

Result<void> DataDirectory::write_pid(int pid) const {
  // In place and always of one length, so that a start on a full disk needs no room for it. It says nothing
  // without the lock: a crash may leave what it likes.
  const auto path = path_ + "/musterd.pid";
  auto line = std::to_string(pid);
  line.resize(kPidLength, ' ');
  MUSTER_TRY(const auto file, open_file(path, O_WRONLY | O_CREAT, 0644));
  return write_all(file.get(), line + "\n").map_error([&](const Error& error) {
    return error.with_context("cannot write " + path);
  });
}

Result<void> DataDirectory::write_created() const {
  const auto path = path_ + "/created";
  return ::access(path.c_str(), F_OK) == 0 ? Result<void>{} : write_file_atomic(path, "");
}

Result<void> DataDirectory::check_complete() const {
  if (::access((path_ + "/created").c_str(), F_OK) != 0) return {};
  std::vector<std::string> lost;
  for (const auto* part : {"keys/master", "keys/root.json", "state/state.db", "objects/metadata.sqlite"}) {
    struct stat info {};
    if (::stat((path_ + "/" + part).c_str(), &info) != 0 || info.st_size == 0) lost.emplace_back(part);
  }
  if (lost.empty()) return {};
  return fail(ErrorCode::corrupt, path_ + " was in use and has lost " + join(lost, ", ") +
                                      " (missing or empty); put it back from a backup, or start an empty "
                                      "service with another --data");
}

Result<DataDirectory::RootKey> DataDirectory::root_key() const {
  MUSTER_TRY(const auto text, read_file(keys() + "/root.json", 4096));
  MUSTER_TRY(const auto object, json::parse_object(text));
  MUSTER_TRY(auto access, json::get_string(object, "access_key"));
  MUSTER_TRY(auto secret, json::get_string(object, "secret_key"));
  return RootKey{std::move(access), std::move(secret)};
}

Result<void> DataDirectory::write_root_key(const RootKey& key) const {
  json::Object object;
  object["access_key"] = key.access_key;
  object["secret_key"] = key.secret_key;
  return write_file_atomic(keys() + "/root.json", json::dump(object) + "\n", 0600);
}

}  // namespace muster::data
