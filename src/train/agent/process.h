// Starting a program and holding on to it: fork, then at once exec; its output by pipes; its end by pidfd.
//
// The child dies with the thread that started it (PR_SET_PDEATHSIG), has an empty signal mask, its stdin is
// /dev/null and it inherits no other descriptor. The Child object neither kills nor reaps: see wait_child.
// Any thread; a Child is for one at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace muster::train {

struct Child {
  pid_t pid = 0;
  UniqueFd pidfd;  // readable when the process has ended
  UniqueFd out;    // its stdout
  UniqueFd err;    // its stderr
};

// argv[0] is the path of the program. `environment` is set on top of this process's own. An error if the
// program cannot be executed, with the system's reason.
Result<Child> spawn(const std::vector<std::string>& argv,
                    const std::vector<std::pair<std::string, std::string>>& environment = {});

struct Ended {
  int code = 0;    // exit code, or 128 + signal
  int signal = 0;  // 0: exited by itself
  // "ended with exit code 3", "was killed by signal 9 (Killed)"
  std::string describe() const;
};

// Waits for the end and reaps. Precondition: not reaped yet.
Ended wait_child(const Child& child);

// The path of this very program, for starting it again.
Result<std::string> own_program();

}  // namespace muster::train
