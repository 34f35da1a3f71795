// The control core: decide what an event means, apply what became durable, and derive what must happen
// outside. All pure: the same state, event and time give the same answer on every machine.
//
// decide() reads the state and one event and says what must become durable (Commit) and what must then
// happen outside (Effects). apply() is the only way the durable state ever changes: the live process and the
// loading of the store both go through it, so memory and disk cannot disagree. Effects on the engine are not
// decided but derived by pending() from the state: live and after a restart alike.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "control/state.h"
#include "domain/commit.h"
#include "domain/launch.h"
#include "domain/report.h"
#include "domain/workload.h"

namespace muster::control {

// ---- events ----

// From api. `request` is the request as received (JSON object text), kept for Describe.
struct SubmitJob {
  domain::JobKind kind = domain::JobKind::training;
  std::string name;
  int nodes = 1;
  Millis max_runtime{86'400'000};
  Millis grace{120'000};
  int retries = 0;
  domain::Workload workload;
  std::string request;
};
struct StopJob {
  domain::JobKind kind = domain::JobKind::training;
  std::string name;
};
// A job as users know it: its name is unique among jobs of its kind only.
struct JobName {
  domain::JobKind kind = domain::JobKind::training;
  std::string name;
  auto operator<=>(const JobName&) const = default;
};
// Forgets the jobs that ended before `before`, at most kPruneMax of them, oldest first; their logs go through
// the outbox.
struct PruneJobs {
  Time before;
  std::optional<std::set<JobName>> only = {};  // none but these
};
struct AddAccessKey {
  domain::AccessKey key;
};
// An outbox entry has been carried out.
struct OutboxDone {
  std::uint64_t sequence = 0;
};
struct Report {
  domain::RankReport report;
};
// From the engine. What was heard of a launch after the moment `asked` is newer than its observation.
struct EngineInventory {
  std::uint64_t asked = 0;
  domain::Inventory inventory;
  std::vector<domain::Observation> observations;
};
// The effect executor has taken a launch in hand; LaunchDone follows.
struct LaunchBegun {
  domain::AttemptId attempt;
};
struct LaunchDone {
  domain::AttemptId attempt;
  std::optional<Error> error;  // set: the gang did not start
};
struct RankGone {
  domain::LaunchId launch;
  std::string message;
};
// A user has ended the launch's runner behind the service's back: its job is stopped, not lost. `how` ends
// the sentence "Stopped ...".
struct RankKilled {
  domain::LaunchId launch;
  std::string how;
};
struct RankReleased {
  domain::LaunchId launch;
};
// A runner polled for its commands: it lives.
struct RankHeard {
  domain::LaunchId launch;
};
// Monotonic time has passed, at most kTickMax of it counts.
struct Tick {
  Millis elapsed{0};
};

using Event = std::variant<SubmitJob, StopJob, PruneJobs, AddAccessKey, OutboxDone, Report, EngineInventory,
                           LaunchBegun, LaunchDone, RankGone, RankKilled, RankReleased, RankHeard, Tick>;

// ---- what a decision is ----

// The answer to the caller of a command; leaves only after the commit.
struct Reply {
  std::optional<Error> error;                                   // a refusal
  domain::JobId job;                                            // SubmitJob
  domain::ReportAnswer answer = domain::ReportAnswer::applied;  // Report
  std::vector<JobName> pruned;                                  // PruneJobs
  std::size_t left = 0;                                         // PruneJobs: for the next ones
};

struct Decision {
  domain::Commit commit;
  std::optional<Reply> reply;  // for SubmitJob, StopJob, PruneJobs, AddAccessKey, Report, RankKilled
};

// How long a silent runner is believed to live, what a tick is worth at most, and how much longer than the
// runner the control plane waits before it ends a command itself.
inline constexpr Millis kLease{180'000};
inline constexpr Millis kTickMax{5'000};
inline constexpr Millis kSlack{30'000};
inline constexpr Millis kRanKept{60'000};      // run time between two writes of it: what a restart may lose
inline constexpr Millis kFarewell{300'000};    // uploads to the final report: the last of its log
inline constexpr Millis kExitWait{10'000};     // final report to the end of the runner
inline constexpr Millis kFailureGrace{4'000};  // SIGTERM to SIGKILL when another rank has failed

// Jobs that one PruneJobs forgets at most: what else the commit carries waits for it.
inline constexpr std::size_t kPruneMax = 1'000;

[[nodiscard]] Decision decide(const State& state, const Event& event, Time now);
void apply(State& state, const domain::Commit& commit);
// Volatile facts of an event (inventory, observations, heard): not durable, applied before decide().
void observe(State& state, const Event& event);

// One scheduling cycle: places what fits, in order, all or nothing. Called once a batch.
[[nodiscard]] domain::Commit schedule(const State& state, Time now);

// Adds the counters with the time of this commit, so that time never goes back across a restart.
void stamp(const State& state, domain::Commit& commit, Time now);

// ---- derived ----

// Start every rank of the attempt (its workload is read from the store by the executor).
struct LaunchGang {
  domain::AttemptId attempt;
};
struct StopRank {
  domain::LaunchId launch;
  Millis grace{0};
};
struct ReleaseRank {
  domain::LaunchId launch;
};
using Effect = std::variant<LaunchGang, StopRank, ReleaseRank>;

// Every engine effect that the durable state calls for and the observations do not show as done.
// Level-triggered: asked for again after a load and every second; doing one twice is harmless.
[[nodiscard]] std::vector<Effect> pending(const State& state, Time now);

// What a runner must do now; nullopt: the launch is stale (410).
[[nodiscard]] std::optional<domain::Desired> desired(const State& state, const domain::LaunchId& launch);

// The live job, its attempt and its rank that `launch` names, if it is the current incarnation. Pointers into
// the state.
struct Current {
  const domain::Job* job = nullptr;
  const domain::Attempt* attempt = nullptr;
  const domain::Rank* rank = nullptr;
};
[[nodiscard]] std::optional<Current> current(const State& state, const domain::LaunchId& launch);

// Who holds each node of the inventory: the attempt's launch, if a live job does.
[[nodiscard]] std::map<domain::NodeName, domain::LaunchId> holders(const State& state);

// Why a live job is where it is, with numbers: "Waiting: the job needs 4 nodes; 3 of ...".
[[nodiscard]] std::string explain(const State& state, domain::JobId job, Time now);

}  // namespace muster::control
