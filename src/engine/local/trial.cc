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

constexpr int kNotTheUser = 126;
constexpr int kNotExecuted = 127;

[[noreturn]] void trace_libraries(const JobUser& user, const std::string& program, int out) {
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  if (become_job(user) != 0) ::_exit(kNotTheUser);
  ::setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
  ::execl(program.c_str(), program.c_str(), nullptr);
  ::_exit(kNotExecuted);
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

struct Trace {
  std::string text;  // what the loader printed
  int code = -1;     // exit code; -1: killed, or not even forked
};

Trace trace(const JobUser& user, const std::string& program) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return {};
  if (child == 0) trace_libraries(user, program, writing.get());
  writing.reset();
  Trace done{.text = read_all(reading.get())};
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) done.code = WEXITSTATUS(status);
  return done;
}

}  // namespace

std::string why_not_startable(const JobUser& user, const std::string& program) {
  const auto traced = trace(user, program);
  for (const auto line : split(traced.text, '\n')) {
    if (line.find("not found") != std::string_view::npos ||
        line.find("cannot open") != std::string_view::npos) {
      return std::string(trim(line));
    }
  }
  if (traced.code == 0) return {};
  if (traced.code == kNotTheUser) return "this process may not become " + user.name;
  return "it cannot be executed by " + user.name;
}

std::vector<std::string> files_loaded_by(const std::string& program) {
  std::vector<std::string> files{program};
  // "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)"
  for (const auto line : split(trace(JobUser{}, program).text, '\n')) {
    const auto begin = line.find("=> /");
    const auto end = line.rfind(" (0x");
    if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) continue;
    files.emplace_back(line.substr(begin + 3, end - begin - 3));
  }
  return files;
}

}  // namespace muster::engine::local
