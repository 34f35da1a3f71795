#include "runner/supervise/command.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/assert.h"
#include "base/text.h"

namespace muster::runner {
namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// What the child tells through its pipe when it could not become the command.
struct ChildError {
  enum class At : int { become, folder, exec } at = At::exec;
  int number = 0;
};

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (auto& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// Files that execve may be tried on, in order of PATH.
std::vector<std::string> candidates(const CommandSpec& spec) {
  const auto& program = spec.words.front();
  if (program.find('/') != std::string::npos) return {program};
  std::vector<std::string> out;
  const auto path = spec.environment.find("PATH");
  if (path == spec.environment.end()) return out;
  for (const auto folder : split(path->second, ':')) {
    if (!folder.empty()) out.push_back(std::string(folder) + "/" + program);
  }
  return out;
}

// Everything the child needs, made before fork.
struct Prepared {
  std::vector<std::string> files;
  std::vector<char*> argv;
  std::vector<char*> shell_argv;  // for scripts without #! line: sh <file> <arguments>
  std::vector<char*> envp;
  const char* folder = nullptr;
  const std::function<int()>* become = nullptr;
  int null = -1, out = -1, err = -1, report = -1;
};

[[noreturn]] void child_fail(const Prepared& prepared, ChildError::At at, int number) {
  const ChildError error{at, number};
  [[maybe_unused]] const auto sent = ::write(prepared.report, &error, sizeof error);
  ::_exit(127);
}

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void run_child(Prepared& prepared) {
  ::setsid();
  ::dup2(prepared.null, 0);
  ::dup2(prepared.out, 1);
  ::dup2(prepared.err, 2);
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (*prepared.become) {
    const int refused = (*prepared.become)();
    if (refused != 0) child_fail(prepared, ChildError::At::become, refused);
  }
  if (::chdir(prepared.folder) != 0) child_fail(prepared, ChildError::At::folder, errno);
  int why = ENOENT;
  for (auto& file : prepared.files) {
    ::execve(file.c_str(), prepared.argv.data(), prepared.envp.data());
    if (errno == ENOEXEC) {  // a script without #! line: as execvp does
      prepared.shell_argv[1] = file.data();
      ::execve("/bin/sh", prepared.shell_argv.data(), prepared.envp.data());
    }
    if (errno != ENOENT && errno != ENOTDIR)
      why = errno;  // a file that is there says more than one that is not
  }
  child_fail(prepared, ChildError::At::exec, why);
}

tl::unexpected<Error> explain(const CommandSpec& spec, const ChildError& error) {
  const auto& program = spec.words.front();
  const auto quoted = "command \"" + program + "\"";
  switch (error.at) {
    case ChildError::At::become:
      return fail_errno("cannot take the job's user", error.number);
    case ChildError::At::folder:
      return fail_errno("cannot enter the working directory " + spec.folder, error.number);
    case ChildError::At::exec:
      break;
  }
  if (error.number == ENOENT) {
    if (program.find('/') == std::string::npos) {
      const auto path = spec.environment.find("PATH");
      return fail(ErrorCode::not_found,
                  quoted + " not found in PATH (" +
                      (path == spec.environment.end() ? "unset" : path->second) +
                      "): give the program in ContainerEntrypoint, or install it on the node");
    }
    struct stat info {};
    if (::stat(program.c_str(), &info) == 0) {
      return fail(ErrorCode::not_found,
                  quoted + " cannot be started: the interpreter of its first line is missing on the node");
    }
    return fail(ErrorCode::not_found, quoted + " not found on the node: no such file");
  }
  if (error.number == EACCES) {
    return fail(
        ErrorCode::permission_denied,
        quoted + " is not executable for the job's user: chmod +x it, or start it through its interpreter");
  }
  return fail_errno("cannot start " + quoted, error.number);
}

// Children of this process, also those of its other threads.
void collect_tree(pid_t root, std::set<pid_t>& out) {
  const auto tasks = "/proc/" + std::to_string(root) + "/task";
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    const auto text = read_file(task.path().string() + "/children");
    if (!text) continue;
    for (const auto word : split(*text, ' ')) {
      const auto child = parse_int(trim(word));
      if (child && out.insert(static_cast<pid_t>(*child)).second)
        collect_tree(static_cast<pid_t>(*child), out);
    }
  }
}

}  // namespace

Result<Command> start(const CommandSpec& spec) {
  if (spec.words.empty() || spec.words.front().empty()) {
    return fail(ErrorCode::not_found,
                "no command to run: the request has no ContainerEntrypoint and its image none of its own");
  }
  MUSTER_TRY(auto null, open_file("/dev/null", O_RDONLY));
  MUSTER_TRY(auto out, make_pipe());
  MUSTER_TRY(auto err, make_pipe());
  MUSTER_TRY(auto report, make_pipe());
  auto words = spec.words;
  std::vector<std::string> shell_words{"sh", ""};
  shell_words.insert(shell_words.end(), words.begin() + 1, words.end());
  std::vector<std::string> variables;
  for (const auto& [name, value] : spec.environment) variables.push_back(name + "=" + value);
  Prepared prepared;
  prepared.files = candidates(spec);
  prepared.argv = pointers(words);
  prepared.shell_argv = pointers(shell_words);
  prepared.envp = pointers(variables);
  prepared.folder = spec.folder.c_str();
  prepared.become = &spec.become;
  prepared.null = null.get();
  prepared.out = out.write.get();
  prepared.err = err.write.get();
  prepared.report = report.write.get();
  const auto pid = ::fork();
  if (pid < 0) return fail_errno("fork");
  if (pid == 0) run_child(prepared);
  out.write.reset();
  err.write.reset();
  report.write.reset();
  ChildError error;
  ssize_t count = 0;
  do {
    count = ::read(report.read.get(), &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  if (count != 0) return explain(spec, error);  // the child is reaped with all others
  for (const int fd : {out.read.get(), err.read.get()}) {
    if (::fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl");
  }
  return Command{pid, std::move(out.read), std::move(err.read)};
}

void signal_group(pid_t pid, int number) {
  MUSTER_ASSERT(pid > 1);
  if (::kill(-pid, number) != 0) ::kill(pid, number);  // before setsid() there is no group yet
}

void kill_everything() {
  if (::getpid() == 1) {
    ::kill(-1, SIGKILL);  // all of this pid namespace but its init
    return;
  }
  // A process may fork while the tree is read: again until nothing new is found.
  for (int round = 0; round < 10; ++round) {
    std::set<pid_t> tree;
    collect_tree(::getpid(), tree);
    if (tree.empty()) return;
    for (const auto pid : tree) ::kill(pid, SIGKILL);
  }
}

Result<void> become_supervisor() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return fail_errno("prctl(PR_SET_CHILD_SUBREAPER)");
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return fail_errno("prctl(PR_SET_DUMPABLE)");
  return {};
}

}  // namespace muster::runner
