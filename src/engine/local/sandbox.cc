#include "engine/local/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "engine/local/handshake.h"
#include "engine/local/mounts.h"
#include "engine/local/reach.h"
#include "engine/local/run_folder.h"
#include "engine/local/trial.h"

namespace muster::engine::local {

namespace {

bool setting_is(const char* path, std::string_view value) {
  const auto text = read_file(path, 64);
  return text && trim(*text) == value;
}

std::string remedy_for_namespaces() {
  if (setting_is("/proc/sys/user/max_user_namespaces", "0")) return "sysctl user.max_user_namespaces=10000";
  if (setting_is("/proc/sys/kernel/unprivileged_userns_clone", "0"))
    return "sysctl kernel.unprivileged_userns_clone=1";
  if (setting_is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")) {
    return "sysctl kernel.apparmor_restrict_unprivileged_userns=0";
  }
  return "run musterd as root, or in a container started with --privileged or with its own user namespace";
}

Result<void> write_proc(const char* path, const std::string& text) {
  MUSTER_TRY(const auto fd, open_file(path, O_WRONLY));
  return write_all(fd.get(), text).map_error([&](Error error) { return error.with_context(path); });
}

// Mount, pid, IPC and UTS namespaces; as whoever may not make them, inside a user namespace where every id is
// itself, so that files keep their owners.
Result<void> take_namespaces(NodeReport& report) {
  constexpr int kSpaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
  const auto uid = ::geteuid();
  const auto gid = ::getegid();
  if (::unshare(kSpaces) != 0) {
    if (errno != EPERM) return fail_errno("unshare");
    if (::unshare(CLONE_NEWUSER | kSpaces) != 0)
      return fail_errno("this machine refuses namespaces: unshare");
    // Without "deny" an unprivileged process may not map its group.
    MUSTER_CHECK(write_proc("/proc/self/setgroups", "deny"));
    const auto itself = [](auto id) { return std::to_string(id) + " " + std::to_string(id) + " 1\n"; };
    MUSTER_CHECK(write_proc("/proc/self/uid_map", itself(uid)));
    MUSTER_CHECK(write_proc("/proc/self/gid_map", itself(gid)));
    report.in_force.emplace_back("user namespace");
  }
  for (const auto* name : {"mount namespace", "pid namespace", "IPC namespace", "host name"}) {
    report.in_force.emplace_back(name);
  }
  return {};
}

// In the inner process: the mounts. `folder` was opened in this mount namespace, before anything is covered.
Result<void> furnish(const NodePlan& plan, int folder, NodeReport& report) {
  if (const auto proc = mount_proc()) {
    report.in_force.emplace_back("own /proc");
  } else {
    report.missing.push_back("own /proc: jobs see the machine's processes (" + proc.error().message + ")");
  }
  MUSTER_CHECK(mount_shared_memory());
  std::vector<std::string> left_out;
  MUSTER_CHECK(mount_opt(folder, left_out));
  report.in_force.emplace_back("own /opt/ml, the machine's /opt untouched");
  for (const auto& what : left_out) report.missing.push_back("a part of /opt is not seen by jobs: " + what);
  if (const auto hosts = mount_hosts(folder)) {
    report.in_force.emplace_back("own /etc/hosts");
  } else {
    report.names_resolve = false;
    report.missing.push_back("own /etc/hosts: names algo-N do not resolve (" + hosts.error().message + ")");
  }
  MUSTER_CHECK(cover(plan.data_directory));
  report.in_force.emplace_back("data directory covered");
  return {};
}

// "exit 3", "signal 9".
std::string describe(int status) {
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

// Without a pid namespace: the outer process is the reaper of all that the runner left behind, and ends it.
void kill_orphans() {
  for (;;) {
    const auto list = read_file("/proc/thread-self/children");
    if (!list) return;  // a kernel that cannot say: they stay
    for (const auto word : split(trim(*list), ' ')) {
      if (const auto pid = parse_int(word); pid && *pid > 1) ::kill(static_cast<pid_t>(*pid), SIGKILL);
    }
    if (::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
  }
}

sigset_t waited_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGCHLD}) ::sigaddset(&set, signal);
  return set;
}

// The outer process from here on. It leaves with the runner's own status.
[[noreturn]] void supervise(pid_t runner, int folder, bool isolated) {
  const auto set = waited_signals();
  int status = 0;
  for (;;) {
    const int signal = ::sigwaitinfo(&set, nullptr);
    if (signal == SIGCHLD) {
      pid_t ended = 0;
      while ((ended = ::waitpid(-1, &status, WNOHANG)) > 0 && ended != runner) {
      }
      if (ended == runner) break;
    } else if (signal > 0) {
      ::kill(runner, SIGTERM);
    }
  }
  if (!isolated) kill_orphans();
  const UniqueFd file(::openat(folder, "exit", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file) static_cast<void>(write_all(file.get(), describe(status) + "\n"));
  ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

// The inner process dies with the outer one. `alive` is the reading end of a pipe that only the outer one can
// write to: closed already means that it died before the death signal was set.
void die_with_parent(int alive) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd poll{.fd = alive, .events = 0, .revents = 0};
  if (::poll(&poll, 1, 0) > 0 && (poll.revents & POLLHUP) != 0) ::_exit(1);
}

// In the inner process, before it has a /proc of its own: its number is the machine's, not 1.
Result<void> register_init(const std::string& path) {
  std::error_code error;
  const auto number = std::filesystem::read_symlink("/proc/self", error);
  const auto pid = parse_int(number.native());
  if (error || !pid) return fail(ErrorCode::io, "/proc/self: " + error.message());
  MUSTER_TRY(const auto self, process_ref(static_cast<pid_t>(*pid)));
  return write_init(path, self);
}

// Splits the process. Returns in the inner one only.
Result<void> split_process(int folder, bool isolated, Handshake& handshake) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe");
  const UniqueFd alive(ends[0]);
  UniqueFd parent(ends[1]);
  auto waited = waited_signals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &waited, &before);
  if (!isolated) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t child = ::fork();
  if (child < 0) return fail_errno("fork");
  if (child > 0) {
    handshake.drop();
    supervise(child, folder, isolated);
  }
  parent.reset();
  die_with_parent(alive.get());
  ::sigaddset(&before, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return {};
}

// The first program of a probe that the job's user cannot start.
std::string try_programs(const NodePlan& plan) {
  for (const auto& program : plan.trials) {
    const auto why = why_not_startable(plan.user, program);
    if (why.empty()) continue;
    const auto closed = barrier(plan.user, program.substr(0, program.rfind('/')));
    return program + ": " + (closed.empty() ? why : closed + " is closed to others");
  }
  return {};
}

// The way of the job's user to the programs; a probe finds out what is needed, and whether it is enough.
Result<void> lead_to_programs(const NodePlan& plan, NodeReport& report) {
  if (!plan.probe) return open_ways(plan.user, plan.reach);
  report.reach = beyond_reach(plan.user, plan.trials);
  const auto opened = open_ways(plan.user, report.reach);
  report.not_startable = opened ? try_programs(plan) : opened.error().message;
  return {};
}

Result<Node> make_node(const std::string& path, Handshake& handshake, NodeReport& report) {
  MUSTER_TRY(const auto text, read_file(path + "/node.json", 1 << 20));
  MUSTER_TRY(const auto plan, decode_node_plan(text));
  MUSTER_TRY(auto lock, handshake.lock(path));
  MUSTER_TRY(const auto self, process_ref(::getpid()));
  MUSTER_CHECK(write_pid(path, self));
  for (const auto& cgroup : plan.cgroups) {
    const auto entered = write_proc((cgroup + "/cgroup.procs").c_str(), "0");
    if (!entered) report.missing.push_back(kLimitsMissing + entered.error().message);
  }
  if (::chdir("/") != 0) return fail_errno("chdir /");
  if (plan.isolate) {
    MUSTER_CHECK(take_namespaces(report));
    if (::sethostname(plan.host_name.data(), plan.host_name.size()) != 0) return fail_errno("sethostname");
    MUSTER_CHECK(make_mounts_private());
  }
  // Opened only now: a mount can only be made from a folder of the own mount namespace.
  MUSTER_TRY(auto folder, open_file(path, O_PATH | O_DIRECTORY));
  MUSTER_CHECK(split_process(folder.get(), plan.isolate, handshake));
  MUSTER_CHECK(register_init(path));
  if (plan.isolate) MUSTER_CHECK(furnish(plan, folder.get(), report));
  if (plan.isolate && plan.user.change) MUSTER_CHECK(lead_to_programs(plan, report));
  handshake.send(report);
  if (plan.probe) ::_exit(0);

  Node node;
  node.isolated = plan.isolate;
  node.names_resolve = plan.isolate && report.names_resolve;
  node.user = plan.user;
  if (!plan.isolate && !plan.user.change) node.user.home = path + "/home";
  node.opt_ml = plan.isolate ? "/opt/ml" : path + "/ml";
  node.folder = plan.isolate ? "/proc/self/fd/" + std::to_string(folder.release()) : path;
  static_cast<void>(lock.release());  // held, and not inherited by children, until the process ends
  return node;
}

}  // namespace

Result<Node> enter_node(const std::string& folder) {
  auto handshake = Handshake::from_environment();
  NodeReport report;
  auto node = make_node(folder, handshake, report);
  if (!node) {
    report.error = node.error().message;
    switch (node.error().code) {
      case ErrorCode::permission_denied:
      case ErrorCode::io:
      case ErrorCode::no_space:  // ENOSPC: no namespace more is allowed
        report.remedy = remedy_for_namespaces();
        break;
      default:
        break;
    }
    handshake.send(report);
  }
  return node;
}

}  // namespace muster::engine::local
