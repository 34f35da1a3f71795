// What a runner reports and what it is asked to do. docs/formats/runner-protocol.md.
//
// Reports are numbered from 1 per LaunchId and sent at least once: a report is applied if it is the next one;
// an older one is acknowledged as a duplicate; a gap is refused. Commands are not deltas but the full desired
// state, so a lost or repeated one does no harm. Values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "domain/job.h"

namespace muster::domain {

struct RankReport {
  LaunchId launch;
  std::uint64_t number = 1;
  RankPhase phase = RankPhase::preparing;  // preparing .. finished
  std::string message;                     // for people: "staged 24.0 MiB in 12 files"
  std::optional<RankExit> exit;            // from `exited` on
};

// The answer to a report.
enum class ReportAnswer { applied, duplicate, gap, stale };  // stale: kill the job and exit

enum class Target {
  stage,   // prepare, then wait at the barrier
  run,     // start the command (the barrier is open)
  upload,  // the command has ended everywhere: write outputs
  exit,    // nothing is left to do: final report, then exit
};
std::string_view to_string(Target target);
std::optional<Target> parse_target(std::string_view text);

struct Desired {
  Target target = Target::stage;
  // Set when the command must not run (any more): SIGTERM now, SIGKILL after `grace`. A rank that is still
  // staging gives up staging and reports exited.
  bool stop = false;
  Cause stop_cause = Cause::user;
  Millis grace{120'000};
  std::uint64_t version = 0;  // rises with every change of the above: the `after` of the long poll
  bool operator==(const Desired&) const = default;
};

}  // namespace muster::domain
