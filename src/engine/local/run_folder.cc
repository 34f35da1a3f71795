#include "engine/local/run_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "base/text.h"
#include "engine/local/cgroups.h"

namespace muster::engine::local {

namespace fs = std::filesystem;

Result<ProcessRef> process_ref(pid_t pid) {
  const auto path = "/proc/" + std::to_string(pid) + "/stat";
  const auto stat = read_file(path);
  if (!stat) return fail(ErrorCode::not_found, "no process " + std::to_string(pid));
  // "pid (name) state ppid ...": the name may hold spaces and parentheses, so count from the last one.
  // Field 22 is the start time; field 3 follows the name.
  const auto name_end = stat->rfind(')');
  if (name_end == std::string::npos) return fail(ErrorCode::corrupt, path + ": no process name");
  const auto fields = split(trim(std::string_view(*stat).substr(name_end + 1)), ' ');
  const auto start = fields.size() > 19 ? parse_int(fields[19]) : std::nullopt;
  if (!start) return fail(ErrorCode::corrupt, path + ": no start time");
  return ProcessRef{.pid = pid, .start = static_cast<std::uint64_t>(*start)};
}

Result<UniqueFd> open_process(const ProcessRef& process) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!fd) {
    if (errno == ESRCH) return fail(ErrorCode::not_found, "no process " + std::to_string(process.pid));
    return fail_errno("pidfd_open " + std::to_string(process.pid));
  }
  // Looked at after the descriptor pins the number: if the start time fits, it is that process.
  MUSTER_TRY(const auto now, process_ref(process.pid));
  if (now != process)
    return fail(ErrorCode::not_found, "process " + std::to_string(process.pid) + " is another one now");
  return fd;
}

Result<void> put_file(const std::string& path, std::string_view data, mode_t mode) {
  const auto temporary = path + ".new";
  {
    MUSTER_TRY(const auto fd, open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode));
    if (const auto written = write_all(fd.get(), data); !written) {
      return tl::unexpected(written.error().with_context("cannot write " + path));
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return fail_errno("rename to " + path);
  return {};
}

namespace {

Result<void> write_process(const std::string& path, const ProcessRef& process) {
  return put_file(path, std::to_string(process.pid) + " " + std::to_string(process.start) + "\n", 0600);
}

std::optional<ProcessRef> read_process(const std::string& path) {
  const auto text = read_file(path, 64);
  if (!text) return std::nullopt;
  const auto words = split(trim(*text), ' ');
  if (words.size() != 2) return std::nullopt;
  const auto pid = parse_int(words[0]);
  const auto start = parse_int(words[1]);
  if (!pid || !start || *pid < 2 || *pid > 0x7fffffff) return std::nullopt;  // never signal init or a group
  return ProcessRef{.pid = static_cast<pid_t>(*pid), .start = static_cast<std::uint64_t>(*start)};
}

}  // namespace

Result<void> write_pid(const std::string& folder, const ProcessRef& process) {
  return write_process(folder + "/pid", process);
}

std::optional<ProcessRef> read_pid(const std::string& folder) { return read_process(folder + "/pid"); }

Result<void> write_init(const std::string& folder, const ProcessRef& process) {
  return write_process(folder + "/init", process);
}

Result<UniqueFd> take_lock(const std::string& folder) {
  MUSTER_TRY(auto fd, open_file(folder + "/lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK)
    return fail(ErrorCode::failed_precondition, folder + " belongs to a living runner");
  return fail_errno("flock " + folder + "/lock");
}

bool is_locked(const std::string& folder) {
  const auto fd = open_file(folder + "/lock", O_RDONLY | O_NOFOLLOW);
  if (!fd) return false;
  // Shared, so that two who look at the same time do not take each other for a runner.
  return ::flock(fd->get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool is_occupied(const std::string& folder) {
  if (is_locked(folder)) return true;
  const auto init = read_process(folder + "/init");
  if (!init) return false;
  const auto process = open_process(*init);
  if (!process) return false;
  pollfd ended{.fd = process->get(), .events = POLLIN, .revents = 0};  // readable: a zombie
  return ::poll(&ended, 1, 0) == 0;
}

std::string read_exit(const std::string& folder) {
  const auto text = read_file(folder + "/exit", 64);
  return text ? std::string(trim(*text)) : std::string();
}

std::vector<domain::LaunchId> list_launches(const std::string& run_directory) {
  std::vector<domain::LaunchId> found;
  std::error_code error;
  for (fs::directory_iterator it(run_directory, error), end; !error && it != end; it.increment(error)) {
    if (const auto id = domain::parse_launch_id(it->path().filename().native())) found.push_back(*id);
  }
  std::sort(found.begin(), found.end());
  return found;
}

Result<void> remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return {};
  // A folder without write or search permission: give the rights back on the way down, then once more.
  ::chmod(path.c_str(), 0700);
  std::error_code walk;
  for (fs::recursive_directory_iterator it(path, fs::directory_options::skip_permission_denied, walk), end;
       !walk && it != end; it.increment(walk)) {
    if (it->symlink_status(error).type() == fs::file_type::directory) ::chmod(it->path().c_str(), 0700);
  }
  fs::remove_all(path, error);
  if (error) return fail(ErrorCode::io, "cannot remove " + path + ": " + error.message());
  return {};
}

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr Millis kFindMax{3'000};  // until a process that holds a lock has said which one it is

struct Victim {
  std::string folder;
  std::optional<ProcessRef> ref;
  UniqueFd process;
};

Result<void> send_signal(const Victim& victim, int signal) {
  if (::syscall(SYS_pidfd_send_signal, victim.process.get(), signal, nullptr, 0) == 0 || errno == ESRCH)
    return {};
  return fail_errno("cannot signal the runner of " + victim.folder);
}

// Waits until the processes are gone or the time is over; drops those that are gone.
void wait_gone(std::vector<Victim>& victims, SteadyClock::time_point until) {
  while (!victims.empty()) {
    const auto left = std::chrono::ceil<Millis>(until - SteadyClock::now()).count();
    if (left <= 0) return;
    std::vector<pollfd> fds;
    for (const auto& victim : victims)
      fds.push_back({.fd = victim.process.get(), .events = POLLIN, .revents = 0});
    if (::poll(fds.data(), fds.size(), static_cast<int>(std::min<std::int64_t>(left, 60'000))) < 0 &&
        errno != EINTR) {
      return;
    }
    for (std::size_t i = victims.size(); i-- > 0;) {
      if (fds[i].revents != 0) victims.erase(victims.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

// The process behind a held lock. A runner or a drain writes its number a moment after it got the lock, in
// which `pid` is missing or names one that is gone; nullopt: nobody wrote it until then, or the lock is free.
std::optional<Victim> find_runner(const std::string& folder, SteadyClock::time_point until) {
  while (is_locked(folder) && SteadyClock::now() < until) {
    const auto ref = read_pid(folder);
    if (ref) {
      if (auto process = open_process(*ref)) return Victim{folder, ref, *std::move(process)};
    }
    std::this_thread::sleep_for(Millis{2});
  }
  return std::nullopt;
}

// A living musterd takes the lock again to ship the spool: then another process is registered.
bool is_taken_apart(const std::string& folder, const std::optional<ProcessRef>& runner) {
  return !is_occupied(folder) || (runner && read_pid(folder) != runner);
}

}  // namespace

Result<int> kill_all(const std::string& run_directory, Millis grace) {
  const auto begin = SteadyClock::now();
  const auto found_until = begin + kFindMax;
  std::vector<Victim> victims;
  std::map<std::string, std::optional<ProcessRef>> folders;
  for (const auto& id : list_launches(run_directory)) {
    const auto folder = run_directory + "/" + to_string(id);
    if (!is_occupied(folder)) continue;
    MUSTER_CHECK(put_file(folder + "/killed", "", 0600));
    auto victim = find_runner(folder, found_until);
    folders[folder] = victim ? victim->ref : std::nullopt;
    if (victim) victims.push_back(*std::move(victim));
  }
  for (const auto& victim : victims) MUSTER_CHECK(send_signal(victim, SIGTERM));
  wait_gone(victims, begin + grace);
  for (const auto& victim : victims) MUSTER_CHECK(send_signal(victim, SIGKILL));
  const auto until = SteadyClock::now() + std::chrono::seconds{5};
  wait_gone(victims, until);
  for (const auto& [folder, runner] : folders) {
    while (!is_taken_apart(folder, runner)) {
      if (SteadyClock::now() > until) {
        return fail(ErrorCode::timeout, "the runner of " + folder + " is still there 5 s after SIGKILL");
      }
      std::this_thread::sleep_for(Millis{2});
    }
  }
  remove_cgroups(run_directory);
  return static_cast<int>(folders.size());
}

std::vector<domain::LaunchId> killed_launches(const std::string& run_directory) {
  auto launches = list_launches(run_directory);
  std::erase_if(launches, [&](const auto& id) {
    return ::access((run_directory + "/" + to_string(id) + "/killed").c_str(), F_OK) != 0;
  });
  return launches;
}

}  // namespace muster::engine::local
