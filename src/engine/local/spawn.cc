#include "engine/local/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/text.h"

namespace muster::engine::local {

namespace {

// Names, or beginnings of names that end in '*'.
constexpr std::string_view kPassedOn[] = {
    "PATH",     "HOME",       "USER",        "LOGNAME",         "SHELL",        "LANG",
    "LC_*",     "TZ",         "TMPDIR",      "LD_LIBRARY_PATH", "CUDA_*",       "NVIDIA_*",
    "NCCL_*",   "GLOO_*",     "OMP_*",       "SSL_CERT_*",      "http_proxy",   "https_proxy",
    "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",        "ASAN_OPTIONS", "TSAN_OPTIONS"};

bool is_passed_on(std::string_view name) {
  for (const auto known : kPassedOn) {
    if (known.ends_with('*') ? name.starts_with(known.substr(0, known.size() - 1)) : name == known)
      return true;
  }
  return false;
}

std::vector<std::string> environment(bool with_report) {
  std::vector<std::string> variables;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (is_passed_on(text.substr(0, text.find('=')))) variables.emplace_back(text);
  }
  if (with_report) variables.push_back(std::string(kFdsVariable) + "=1");
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (auto& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// A copy with a number that no dup2 of the child can hit.
Result<UniqueFd> high(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 16));
  if (!copy) return fail_errno("dup");
  return copy;
}

class Actions {
 public:
  Actions() { ::posix_spawn_file_actions_init(&actions_); }
  ~Actions() { ::posix_spawn_file_actions_destroy(&actions_); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

class Attributes {
 public:
  Attributes() {
    ::posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigset_t all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setflags(&attributes_, static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
                                                                POSIX_SPAWN_SETSIGDEF));
  }
  ~Attributes() { ::posix_spawnattr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

}  // namespace

Result<pid_t> spawn(const Program& program) {
  MUSTER_TRY(const auto log, open_file(program.log_path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600));
  MUSTER_TRY(const auto log_copy, high(log.get()));
  Actions actions;
  ::posix_spawn_file_actions_addopen(actions.get(), STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(actions.get(), log_copy.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(actions.get(), log_copy.get(), STDERR_FILENO);
  UniqueFd lock;
  UniqueFd report;
  int first_closed = kLockFd;
  if (program.lock_fd >= 0) {
    MUSTER_TRY(lock, high(program.lock_fd));
    ::posix_spawn_file_actions_adddup2(actions.get(), lock.get(), kLockFd);
    first_closed = kLockFd + 1;
  }
  if (program.report_fd >= 0) {
    MUSTER_TRY(report, high(program.report_fd));
    ::posix_spawn_file_actions_adddup2(actions.get(), report.get(), kReportFd);
    first_closed = kReportFd + 1;
  }
  ::posix_spawn_file_actions_addclosefrom_np(actions.get(), first_closed);
  ::posix_spawn_file_actions_addchdir_np(actions.get(), "/");

  std::vector<std::string> arguments{program.path};
  arguments.insert(arguments.end(), program.arguments.begin(), program.arguments.end());
  auto variables = environment(program.report_fd >= 0);
  const Attributes attributes;
  pid_t pid = 0;
  const int refused = ::posix_spawn(&pid, program.path.c_str(), actions.get(), attributes.get(),
                                    pointers(arguments).data(), pointers(variables).data());
  if (refused != 0) return fail_errno("cannot start " + program.path, refused);
  return pid;
}

Result<StartedRunner> start_runner(const std::string& runner_program, const std::string& folder,
                                   UniqueFd lock) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe");
  UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  MUSTER_TRY(const auto pid, spawn({.path = runner_program,
                                    .arguments = {"node", folder},
                                    .log_path = folder + "/runner.log",
                                    .lock_fd = lock.get(),
                                    .report_fd = writing.get()}));
  return StartedRunner{.pid = pid, .report = std::move(reading)};
}

Result<NodeReport> await_report(const StartedRunner& runner, const std::string& folder, Millis wait_max) {
  const auto until = std::chrono::steady_clock::now() + wait_max;
  std::string text;
  for (;;) {
    const auto left = std::chrono::ceil<Millis>(until - std::chrono::steady_clock::now()).count();
    pollfd poll{.fd = runner.report.get(), .events = POLLIN, .revents = 0};
    const int ready = left <= 0 ? 0 : ::poll(&poll, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      return fail(ErrorCode::timeout,
                  "the runner in " + folder + " did not make its node within " + format_duration(wait_max));
    }
    char buffer[4096];
    const auto count = ::read(runner.report.get(), buffer, sizeof buffer);
    if (count < 0) {
      if (errno == EINTR) continue;
      return fail_errno("read the node report of " + folder);
    }
    if (count == 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  if (!text.empty()) return decode_node_report(text);
  auto log = read_file(folder + "/runner.log", 1 << 20).value_or("");
  if (log.size() > 300) log.erase(0, log.size() - 300);
  return fail(ErrorCode::unavailable, "the runner ended before its node was made" +
                                          (log.empty() ? "" : ": " + std::string(trim(log))));
}

}  // namespace muster::engine::local
