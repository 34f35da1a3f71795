#include "bench/support/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace muster::bench {

Result<Child> Child::start(const std::vector<std::string>& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe");
  UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  auto copy = words;
  std::vector<char*> arguments;
  for (auto& word : copy) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  pid_t pid = 0;
  const int refused = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (refused != 0) return fail_errno("cannot start " + words[0], refused);
  return Child(pid, std::move(reading));
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), output_(std::move(other.output_)) {}

Child::~Child() {
  if (pid_ == 0) return;
  signal(SIGKILL);
  wait();
}

Result<std::string> Child::read() {
  char buffer[4096];
  for (;;) {
    const auto count = ::read(output_.get(), buffer, sizeof buffer);
    if (count >= 0) return std::string(buffer, static_cast<std::size_t>(count));
    if (errno != EINTR) return fail_errno("read from a child");
  }
}

void Child::signal(int number) const {
  if (pid_ != 0) ::kill(pid_, number);
}

int Child::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace muster::bench
