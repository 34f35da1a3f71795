// Starting, signalling and clearing away the command of a job.
//
// Threading: start() may be called with other threads running (the child only makes async-signal-safe calls).
// Who reaps is the caller: one place must waitpid() for all children.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace muster::runner {

struct CommandSpec {
  std::vector<std::string> words;  // program (looked up in the environment's PATH) and arguments
  std::map<std::string, std::string> environment;  // all of it
  std::string folder = "/";                        // working directory
  // Called in the child between fork and exec, async-signal-safe: takes the job's user. 0 or an errno.
  std::function<int()> become;
};

struct Command {
  pid_t pid = 0;  // leader of a session and process group of its own
  UniqueFd out;   // its stdout, non-blocking
  UniqueFd err;   // its stderr, non-blocking
};

// not_found: no such program (a person can act on the message); permission_denied; io.
Result<Command> start(const CommandSpec& spec);

// To the command's process group. Gone already: nothing.
void signal_group(pid_t pid, int number);

// SIGKILL to everything that the runner's descendants are: as pid 1 all processes of the namespace, else the
// tree below this process (which must be a child subreaper).
void kill_everything();

// Makes this process the parent of its orphaned descendants, and keeps its memory and /proc entries from
// processes of the same user.
Result<void> become_supervisor();

}  // namespace muster::runner
