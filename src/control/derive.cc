// What follows from the state: effects on the engine, the word for each runner, and explanations.
#include <algorithm>

#include "base/assert.h"
#include "base/text.h"
#include "control/control.h"
#include "control/detail/edit.h"

namespace muster::control {
namespace {

using detail::is_over;
using domain::Phase;
using domain::RankPhase;
using domain::Target;

const Seen* seen_of(const State& state, const domain::LaunchId& launch) {
  const auto found = state.seen.find(launch);
  return found == state.seen.end() ? nullptr : &found->second;
}

Millis silence(const State& state, const domain::LaunchId& launch) {
  const auto guard = state.guards.find(launch);
  return guard == state.guards.end() ? Millis{0} : guard->second.silent;
}

// After a crash in the middle of a launch some ranks may have reported already, and others were never
// started.
bool wants_launch(const State& state, const domain::Job& job, const domain::Attempt& attempt) {
  if (job.phase >= Phase::ready || job.stop || state.launching.contains(attempt.id)) return false;
  for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
    const auto launch = detail::launch_of(attempt, rank);
    const auto guard = state.guards.find(launch);
    const bool heard = guard != state.guards.end() && guard->second.heard != 0;
    if (attempt.ranks[rank].phase == RankPhase::starting && seen_of(state, launch) == nullptr && !heard)
      return true;
  }
  return false;
}

// A runner that lives and does not do in time what it should have done by itself: end its command after a
// stop, or leave when its work is done.
bool is_overdue(const State& state, const domain::Job& job, const domain::LaunchId& launch, RankPhase phase) {
  const auto guard = state.guards.find(launch);
  if (guard == state.guards.end()) return false;
  if (phase == RankPhase::uploaded) return guard->second.leaving > kFarewell;
  return job.stop && !detail::has_exited(phase) && guard->second.stopping > job.stop->grace + kSlack;
}

// A launch whose work is over, or that no job knows: ended if it lingers, then cleaned up.
void tidy(const State& state, const domain::LaunchId& launch, const Seen& seen, bool lost,
          std::vector<Effect>& out) {
  if (!seen.alive) {
    out.emplace_back(ReleaseRank{launch});
  } else if (lost || silence(state, launch) > kExitWait) {
    out.emplace_back(StopRank{launch, Millis{0}});
  }
}

Target target_of(const domain::Job& job, const domain::Attempt& attempt, std::size_t rank) {
  const auto phase = attempt.ranks[rank].phase;
  if (phase == RankPhase::finished || phase == RankPhase::uploaded) return Target::exit;
  if (job.phase == Phase::finishing) {
    // Rank 0 merges what the others have sent.
    const bool first = rank == 0;
    const bool others_sent =
        std::all_of(attempt.ranks.begin() + 1, attempt.ranks.end(),
                    [](const auto& other) { return other.phase >= RankPhase::uploaded; });
    return !first || others_sent ? Target::upload : Target::run;
  }
  return job.phase >= Phase::ready ? Target::run : Target::stage;
}

constexpr Millis kElapsedShown{10'000};  // shorter waits need no figure

// "; 2 min 05 s so far" in the phase that the job is in.
std::string so_far(const domain::Job& job, Time now) {
  const auto elapsed = job.history.empty() ? Millis{0} : now - job.history.back().at;
  return elapsed < kElapsedShown ? "" : "; " + format_duration(elapsed) + " so far";
}

// "1 of 2 nodes done (algo-2: staged 8 B in 2 files), waiting for algo-1 on node-1": at most three of each by
// name. What a rank said last is shown before the start only: later it may be about another step.
std::string progress(const domain::Job& job, const domain::Attempt& attempt, const State& state,
                     bool (*done)(RankPhase)) {
  constexpr std::size_t kListed = 3;
  std::vector<std::string> said;
  std::vector<std::string> waiting;
  int done_count = 0;
  for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
    const auto host = domain::host_name(static_cast<int>(rank));
    if (!done(attempt.ranks[rank].phase)) {
      waiting.push_back(host + " on " + attempt.ranks[rank].node);
      continue;
    }
    ++done_count;
    const auto guard = state.guards.find(detail::launch_of(attempt, rank));
    if (job.phase < Phase::ready && said.size() < kListed && guard != state.guards.end() &&
        !guard->second.message.empty())
      said.push_back(host + ": " + guard->second.message);
  }
  const auto more = waiting.size() - std::min(waiting.size(), kListed);
  waiting.resize(waiting.size() - more);
  return std::to_string(done_count) + " of " + std::to_string(job.nodes) +
         (job.nodes == 1 ? " node" : " nodes") + " done" +
         (said.empty() ? "" : " (" + join(said, "; ") + ")") +
         (waiting.empty() ? "" : ", waiting for " + join(waiting, ", ")) +
         (more == 0 ? "" : " and " + std::to_string(more) + " more");
}

std::string why_stopping(const domain::Job& job) {
  switch (job.stop->cause) {
    case domain::Cause::user:
      return "Stopping, as a user asked";
    case domain::Cause::limit:
      return "Stopping at the run time limit of " + format_duration(job.max_runtime);
    case domain::Cause::program:
    case domain::Cause::infrastructure:
      return "Stopping after a failure (" + job.stop->reason + ")";
  }
  return {};
}

std::string explain_stopping(const domain::Job& job, const domain::Attempt& attempt, const State& state,
                             Time now) {
  const auto left = job.stop->requested + job.stop->grace - now;
  return why_stopping(job) + ": ending the commands, " + progress(job, attempt, state, detail::has_exited) +
         (left > Millis{0} ? "; what still runs is killed in " + format_duration(left) : "");
}

}  // namespace

std::optional<Current> current(const State& state, const domain::LaunchId& launch) {
  const auto attempt = state.attempts.find(launch.attempt);
  if (attempt == state.attempts.end() || launch.rank < 0) return std::nullopt;
  const auto rank = static_cast<std::size_t>(launch.rank);
  if (rank >= attempt->second.ranks.size()) return std::nullopt;
  const auto& entry = attempt->second.ranks[rank];
  if (entry.incarnation != launch.incarnation) return std::nullopt;
  const auto job = state.jobs.find(attempt->second.job);
  MUSTER_ASSERT(job != state.jobs.end());
  return Current{&job->second, &attempt->second, &entry};
}

std::map<domain::NodeName, domain::LaunchId> holders(const State& state) {
  std::map<domain::NodeName, domain::LaunchId> result;
  for (const auto& [id, attempt] : state.attempts) {
    for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
      result.emplace(attempt.ranks[rank].node, detail::launch_of(attempt, rank));
    }
  }
  return result;
}

std::vector<Effect> pending(const State& state, Time) {
  std::vector<Effect> out;
  if (!state.inventory_known) return out;
  for (const auto& [id, attempt] : state.attempts) {
    const auto& job = state.jobs.at(attempt.job);
    if (wants_launch(state, job, attempt)) out.emplace_back(LaunchGang{id});
    for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
      const auto launch = detail::launch_of(attempt, rank);
      const auto* seen = seen_of(state, launch);
      if (seen == nullptr) continue;
      const auto phase = attempt.ranks[rank].phase;
      if (is_over(phase)) {
        tidy(state, launch, *seen, phase == RankPhase::lost, out);
        continue;
      }
      if (seen->alive && is_overdue(state, job, launch, phase)) {
        out.emplace_back(StopRank{launch, Millis{0}});
      }
    }
  }
  for (const auto& [launch, seen] : state.seen) {
    if (!current(state, launch)) tidy(state, launch, seen, false, out);
  }
  return out;
}

std::optional<domain::Desired> desired(const State& state, const domain::LaunchId& launch) {
  const auto known = current(state, launch);
  if (!known || known->rank->phase == RankPhase::lost) return std::nullopt;
  domain::Desired result;
  result.target = target_of(*known->job, *known->attempt, static_cast<std::size_t>(launch.rank));
  result.grace = known->job->grace;
  std::uint64_t stop_step = 0;
  if (const auto& stop = known->job->stop) {
    result.stop = true;
    result.stop_cause = stop->cause;
    result.grace = stop->grace;
    stop_step = stop->cause == domain::Cause::user ? 2 : 1;
  }
  // Within one attempt the target only rises, and a stop stays.
  result.version = 1 + static_cast<std::uint64_t>(result.target) * 3 + stop_step;
  return result;
}

std::string explain(const State& state, domain::JobId id, Time now) {
  const auto found = state.jobs.find(id);
  if (found == state.jobs.end()) return {};
  const auto& job = found->second;
  if (job.phase == Phase::queued) {
    if (!state.inventory_known) return "Waiting: the service does not know its nodes yet";
    const auto place = std::lower_bound(state.queue.begin(), state.queue.end(), id);
    MUSTER_ASSERT(place != state.queue.end() && *place == id);
    const auto blocked =
        scheduler::blocked(detail::snapshot(state), detail::queue(state, state.nodes.size() + 1),
                           static_cast<std::size_t>(place - state.queue.begin()));
    return blocked ? "Waiting: the job " + scheduler::describe(*blocked) : "Starting now";
  }
  const auto& attempt = state.attempts.at(job.attempt);
  if (job.stop && job.phase < Phase::finishing) return explain_stopping(job, attempt, state, now);
  const auto is_ready = [](RankPhase phase) { return phase >= RankPhase::ready; };
  const auto is_uploaded = [](RankPhase phase) { return phase >= RankPhase::uploaded; };
  switch (job.phase) {
    case Phase::launching:
      return "Starting the nodes: " + progress(job, attempt, state, is_ready) + so_far(job, now);
    case Phase::preparing:
      return "Copying the input data to the nodes: " + progress(job, attempt, state, is_ready) +
             so_far(job, now);
    case Phase::ready:
      return "Starting the command: every node is ready";
    case Phase::running:
      return "The command runs on " + std::to_string(job.nodes) + (job.nodes == 1 ? " node" : " nodes") +
             so_far(job, now);
    case Phase::finishing:
      return (job.stop ? why_stopping(job) + "; uploading" : "Uploading") +
             " what the job wrote to S3: " + progress(job, attempt, state, is_uploaded) + so_far(job, now);
    case Phase::queued:
    case Phase::ended:
      break;
  }
  return {};
}

}  // namespace muster::control
