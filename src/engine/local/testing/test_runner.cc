// Plays muster-runner in the tests of the local engine.
//
//   test_runner node FOLDER    enters the node, then does what the workload's entrypoint says:
//     stay            until SIGTERM, then ends with 0
//     stubborn        ignores SIGTERM
//     end N           ends with N
//     shell SCRIPT    runs SCRIPT as the job would be run, and ends with its code
//     orphan LOCK     leaves a process in a session of its own, twice forked, that holds a lock on LOCK and
//                     so much memory that the kernel takes a moment to end it; then stays. With a further
//                     word it ends at once instead.
//   test_runner drain FOLDER   fails if FOLDER/keep exists; else writes FOLDER/shipped
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "engine/local/run_folder.h"
#include "engine/local/sandbox.h"
#include "wire/runner/messages.h"

namespace {

using muster::engine::local::Node;

int stay() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  int signal = 0;
  sigwait(&set, &signal);
  return 0;
}

int shell(const Node& node, const std::string& script) {
  if (const auto given = muster::engine::local::give_to_job(node.user, node.opt_ml); !given) {
    std::fprintf(stderr, "%s\n", given.error().message.c_str());
    return 1;
  }
  const pid_t child = fork();
  if (child == 0) {
    if (muster::engine::local::become_job(node.user) != 0) _exit(126);
    setenv("HOME", node.user.home.c_str(), 1);
    execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended < 0 && errno != EINTR) return 125;
  }
}

int orphan(const std::string& lock, bool end) {
  int ready[2];
  if (pipe(ready) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    setsid();
    for (int signal = 1; signal < 32; ++signal) ::signal(signal, SIG_IGN);
    dup2(ready[1], 1);
    close_range(3, ~0U, 0);  // also the lock of the run folder, as if it had become another program
    const std::vector<char> memory(std::size_t{256} << 20, 'x');  // given back before the lock is
    const int fd = open(lock.c_str(), O_RDWR | O_CREAT, 0666);
    const bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (write(1, held ? "y" : "n", 1) != 1) _exit(1);
    close(1);
    for (;;) pause();
  }
  close(ready[1]);
  waitpid(child, nullptr, 0);
  char answer = 'n';
  if (read(ready[0], &answer, 1) != 1 || answer != 'y') return 1;
  return end ? 0 : stay();
}

int node(const std::string& folder) {
  const auto entered = muster::engine::local::enter_node(folder);
  if (!entered) {
    std::fprintf(stderr, "%s\n", entered.error().message.c_str());
    return 1;
  }
  const auto text = muster::read_file(entered->folder + "/launch.json");
  const auto launch = text ? muster::wire::decode_node_launch(*text) : tl::unexpected(text.error());
  if (!launch || launch->workload.entrypoint.empty()) {
    std::fprintf(stderr, "%s\n", launch ? "no entrypoint" : launch.error().message.c_str());
    return 1;
  }
  const auto& words = launch->workload.entrypoint;
  if (words[0] == "stay") return stay();
  if (words[0] == "end") return static_cast<int>(muster::parse_int(words.at(1)).value_or(1));
  if (words[0] == "shell") return shell(*entered, words.at(1));
  if (words[0] == "orphan") return orphan(words.at(1), words.size() > 2);
  for (;;) pause();  // stubborn: SIGTERM is blocked
}

int drain(const std::string& folder) {
  namespace local = muster::engine::local;
  if (!local::write_pid(folder, *local::process_ref(getpid()))) return 1;
  if (access((folder + "/keep").c_str(), F_OK) == 0) return 1;
  return muster::write_file_atomic(folder + "/shipped", "yes") ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::string verb = count == 3 ? words[1] : "";
  if (verb == "node") return node(words[2]);
  if (verb == "drain") return drain(words[2]);
  std::fprintf(stderr, "test_runner node|drain FOLDER\n");
  return 2;
}
