// A job, its attempts and their ranks: values and the words for their states. Pure.
//
// These states are Muster's own. SageMaker and Batch statuses are total pure functions of them (api).
//
//   queued -> launching -> preparing -> ready -> running -> finishing -> ended
//
// queued     waits for its nodes (all or nothing)
// launching  placed; the engine starts one runner a rank
// preparing  runners stage channels and restore checkpoints
// ready      every rank is at the barrier; released together
// running    the command runs on every rank
// finishing  every command has ended; outputs are uploaded
// ended      {outcome, cause, reason}; never changes again
//
// Orthogonal to the phase: a requested stop, the attempt, and the cause of the end. A job goes back from any
// live phase to queued when its attempt is lost to the infrastructure and a retry is left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "domain/ids.h"

namespace muster::domain {

enum class JobKind { training, processing };
enum class Phase { queued, launching, preparing, ready, running, finishing, ended };
enum class Outcome { succeeded, failed, stopped };
// Why it ended or is being stopped. program: by its own exit code.
enum class Cause { program, user, infrastructure, limit };

std::string_view to_string(JobKind kind);
std::string_view to_string(Phase phase);
std::string_view to_string(Outcome outcome);
std::string_view to_string(Cause cause);
std::optional<JobKind> parse_job_kind(std::string_view text);
std::optional<Phase> parse_phase(std::string_view text);
std::optional<Outcome> parse_outcome(std::string_view text);
std::optional<Cause> parse_cause(std::string_view text);

inline constexpr std::size_t kReasonMax = 1024;  // characters of a failure reason or exit message

struct Stop {
  Cause cause = Cause::user;  // user, limit, infrastructure, or program (another rank failed)
  Time requested;
  Millis grace{120'000};         // SIGTERM to SIGKILL of this stop
  std::string reason;            // of the failure behind it (program, infrastructure)
  std::optional<int> exit_code;  // of the rank that failed
  bool operator==(const Stop&) const = default;
};

struct End {
  Outcome outcome = Outcome::succeeded;
  Cause cause = Cause::program;
  std::string reason;            // failed: why, at most kReasonMax characters
  std::optional<int> exit_code;  // of the rank that decided
  std::string exit_message;      // /opt/ml/output/message of rank 0 (processing)
  bool operator==(const End&) const = default;
};

// One entry of a job's history: it entered `phase` at `at`. `stopping` marks the time between a stop request
// and the end of the commands.
struct Transition {
  Time at;
  Phase phase = Phase::queued;
  bool stopping = false;
  int attempt = 1;
  std::string message;
  bool operator==(const Transition&) const = default;
};

struct Job {
  JobId id;
  JobKind kind = JobKind::training;
  std::string name;  // unique among jobs of its kind
  int nodes = 1;
  Millis max_runtime{86'400'000};  // over all attempts; measured by the runner, enforced from both sides
  Millis grace{120'000};           // SIGTERM to SIGKILL
  int retries = 0;                 // further attempts after an infrastructure failure
  Time created;
  Time modified;
  std::optional<Time> started;  // first entered running
  std::optional<Time> ended;
  Phase phase = Phase::queued;
  std::optional<Stop> stop;
  std::optional<End> end;
  AttemptId attempt;  // the current or last one; none before the first placement
  int attempts = 0;   // made so far
  Millis ran{0};      // run time of the earlier attempts, not by the wall clock: the limit spans all of them
  std::vector<Transition> history;
  bool operator==(const Job&) const = default;
};

// What a rank's runner last said (durable), in the order in which a healthy rank passes them.
enum class RankPhase {
  starting,   // placed; its runner has not reported yet
  preparing,  // staging
  ready,      // at the barrier
  running,    // its command runs
  exited,     // its command ended (or never started); waits for the word to upload
  uploading,
  uploaded,  // all that it had to write is in the store
  finished,  // last log line acknowledged, final report made, runner gone
  lost,      // its runner or node died without a final report
};
std::string_view to_string(RankPhase phase);
std::optional<RankPhase> parse_rank_phase(std::string_view text);

// How a rank's work ended, as far as it got.
struct RankExit {
  std::optional<int> exit_code;  // of the command; nullopt when it never ran
  int signal = 0;                // that killed the command, or 0
  Cause cause = Cause::program;
  std::string reason;   // failure file, else what went wrong; empty on success
  std::string message;  // /opt/ml/output/message
  bool operator==(const RankExit&) const = default;
};

struct Rank {
  NodeName node;
  int incarnation = 1;
  RankPhase phase = RankPhase::starting;
  std::uint64_t reports = 0;  // number of the last report applied
  std::optional<RankExit> exit;
  bool operator==(const Rank&) const = default;
};

struct Attempt {
  AttemptId id;
  JobId job;
  int number = 1;  // from 1 within its job
  Time created;
  std::optional<Time> started;  // first rank entered running
  Millis ran{0};                // how long its command has run, as last kept (about once a minute)
  std::vector<Rank> ranks;
  bool operator==(const Attempt&) const = default;
};

// Where a job's lines are in the log store: names that clients of the field look for (they are SageMaker's).
// Pure functions of the job.
std::string log_group(JobKind kind);  // /aws/sagemaker/TrainingJobs
std::string log_stream(std::string_view job_name, int rank, Time attempt_created);  // <job>/algo-1-<unix ms>
std::string host_name(int rank);                                                    // algo-<rank+1>

}  // namespace muster::domain
