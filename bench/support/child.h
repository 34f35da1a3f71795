// A child process with its output on a pipe. Used by one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace muster::bench {

class Child {
 public:
  // words: program (looked up in PATH) and arguments. stdout goes to a pipe, stderr stays.
  static Result<Child> start(const std::vector<std::string>& words);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // kills and reaps it

  // Blocks until output comes; "" at its end.
  Result<std::string> read();
  void signal(int number) const;
  int wait();  // its exit code; 128 + signal

 private:
  Child(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}
  pid_t pid_;  // 0: reaped
  UniqueFd output_;
};

}  // namespace muster::bench
