#include "engine/local/trial.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/file.h"
#include "base/text.h"

namespace muster::engine::local {

namespace {

[[noreturn]] void trace_libraries(const JobUser& user, const std::string& program, int out) {
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  if (become_job(user) != 0) ::_exit(126);
  ::setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
  ::execl(program.c_str(), program.c_str(), nullptr);
  ::_exit(127);
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const auto count = ::read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

std::string why_not_startable(const JobUser& user, const std::string& program) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe to try it with";
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return "no process to try it with";
  if (child == 0) trace_libraries(user, program, writing.get());
  writing.reset();
  const auto text = read_all(reading.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  for (const auto line : split(text, '\n')) {
    if (line.find("not found") != std::string_view::npos ||
        line.find("cannot open") != std::string_view::npos) {
      return std::string(trim(line));
    }
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return "it cannot be executed by " + user.name;
}

}  // namespace muster::engine::local
