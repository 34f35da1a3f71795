#include "train/agent/process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

extern char** environ;

namespace muster::train {
namespace {

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> make_pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return fail_errno("pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& extra) {
  std::vector<std::string> lines;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const auto name = line.substr(0, line.find('='));
    bool replaced = false;
    for (const auto& [key, value] : extra) replaced = replaced || key == name;
    if (!replaced) lines.emplace_back(line);
  }
  for (const auto& [key, value] : extra) lines.push_back(key + "=" + value);
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Between fork and exec: only calls that are safe in a child of a process with threads.
[[noreturn]] void run_child(pid_t parent, int in, int out, int err, int failure, char* const* argv,
                            char* const* envp) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  if (dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2) execve(argv[0], argv, envp);
  const int error = errno;
  [[maybe_unused]] const auto written = write(failure, &error, sizeof error);
  _exit(127);
}

}  // namespace

Result<Child> spawn(const std::vector<std::string>& argv,
                    const std::vector<std::pair<std::string, std::string>>& environment) {
  MUSTER_TRY(UniqueFd null, open_file("/dev/null", O_RDONLY));
  MUSTER_TRY(Pipe out, make_pipe());
  MUSTER_TRY(Pipe err, make_pipe());
  MUSTER_TRY(Pipe failure, make_pipe());
  std::vector<std::string> arguments = argv, variables = merged_environment(environment);
  const auto argument_pointers = pointers(arguments), variable_pointers = pointers(variables);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return fail_errno("fork");
  if (pid == 0) {
    run_child(parent, null.get(), out.write.get(), err.write.get(), failure.write.get(),
              argument_pointers.data(), variable_pointers.data());
  }
  failure.write.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(failure.read.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    waitpid(pid, nullptr, 0);
    return fail_errno("start " + argv[0], error);
  }
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    auto failed = fail_errno("pidfd_open");
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return failed;
  }
  return Child{.pid = pid, .pidfd = UniqueFd(pidfd), .out = std::move(out.read), .err = std::move(err.read)};
}

std::string Ended::describe() const {
  if (signal == 0) return "ended with exit code " + std::to_string(code);
  return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

Ended wait_child(const Child& child) {
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return {.code = 128 + WTERMSIG(status), .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

Result<std::string> own_program() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length < 0) return fail_errno("/proc/self/exe");
  return std::string(path.data(), static_cast<std::size_t>(length));
}

}  // namespace muster::train
