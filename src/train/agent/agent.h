// The agent: starts the ranks of one node by running this program again, watches them, and ends as they end.
//
// One thread; no tensor code. The ranks die with the agent. Rank 0's output passes through unchanged; lines
// of other ranks go to stderr behind "[rank N] ". An error_line() that several ranks say with the same
// message is shown once.
//
// - A rank fails: the others get a second to fail for themselves (they lose a peer; saying so takes no time),
//   then are killed. Named, with its last lines where others came after them, is the first rank that failed
//   by itself; if there is none here, the first that lost a peer; one that the agent killed only if all
//   others were killed too.
// - SIGTERM, SIGINT or SIGHUP: forwarded as SIGTERM; the ranks save and stop. One that has not begun to train
//   just ends, and the others with it; so it is where only that rank gets the SIGTERM. A rank that fails by
//   itself meanwhile is a failure all the same. Signals within `same_stop` of the first are the same request
//   (timeout and terminals send several); a later one, or `stop_grace`, kills the ranks. Where one has ended
//   well before, all had saved, and the end is as without the kill.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "train/agent/discover.h"

namespace muster::train {

// Exit codes of ranks and agent.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitLostPeer = 69;  // EX_UNAVAILABLE: failed because another rank did
inline constexpr int kExitStopped =
    75;  // EX_TEMPFAIL: saved and stopped before the end; start again to go on

// Of a program that fails with this error: kExitUsage for wrong input, else kExitFailed.
int exit_code(const Error& error);

struct AgentOptions {
  std::vector<std::string> command;  // program and arguments; the rank's flags are appended
  NodePlace place;
  std::string store_host;  // of the running store
  std::uint16_t store_port = 0;
  Millis failure_grace{1'000};
  Millis same_stop{5'000};
  Millis stop_grace{115'000};  // SageMaker kills 120 s after SIGTERM
};

struct AgentEnd {
  int code = 0;              // of the first failed rank; kExitStopped if all stopped; 0 if all are done
  std::string failure = {};  // empty, or "rank 1 ended with exit code 3: <its last line on stderr>"
};

// The line on stderr with which a rank ends that fails: "muster-train: rank 1: ...". Named is the rank that
// the message begins with ("rank 0: ...", of an error that all ranks share), else `rank`.
std::string error_line(int rank, std::string_view message);

// Blocks SIGTERM, SIGINT and SIGHUP in this thread and all it starts from now on. Call before any thread is
// made, so that run_agent gets them.
void hold_stop_signals();

// Undoes it, in a process that turns out to be a rank: a signal that came meanwhile takes effect.
void release_stop_signals();

// Precondition: hold_stop_signals().
Result<AgentEnd> run_agent(const AgentOptions& options);

// The flags that tell a rank its place: muster-train train reads them back.
std::vector<std::string> rank_flags(const RankPlace& place);

}  // namespace muster::train
