// Starts programs from musterd, which has many threads: posix_spawn, so nothing of ours runs between fork and
// exec.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "engine/local/handshake.h"

namespace muster::engine::local {

struct Program {
  std::string path;
  std::vector<std::string> arguments;  // after the program's name
  std::string log_path;                // standard output and error, appended
  int lock_fd = -1;                    // becomes kLockFd
  int report_fd = -1;                  // becomes kReportFd, and the environment says so
};

// A new session with default signals, / as its folder, /dev/null as input, no other descriptor, and only
// those variables of our environment that say nothing about the service or its operator's keys.
Result<pid_t> spawn(const Program& program);

// A runner whose node is being made.
struct StartedRunner {
  pid_t pid = 0;
  UniqueFd report;
};

// Spawns `muster-runner node <folder>` with the folder's lock.
Result<StartedRunner> start_runner(const std::string& runner_program, const std::string& folder,
                                   UniqueFd lock);

// Waits for the report of a started runner until it comes, the runner ends, or `wait_max` is over; an error
// in the report is answered as a report, not as an error.
Result<NodeReport> await_report(const StartedRunner& runner, const std::string& folder, Millis wait_max);

}  // namespace muster::engine::local
