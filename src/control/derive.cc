// What follows from the state: effects on the engine, the word for each runner, and explanations.
#include <algorithm>

#include "base/assert.h"
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

std::string list_hosts(const domain::Job& job, const domain::Attempt& attempt, const State& state,
                       bool (*waiting)(RankPhase)) {
  std::string text;
  int listed = 0;
  int total = 0;
  for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
    if (!waiting(attempt.ranks[rank].phase)) continue;
    ++total;
    if (listed == 3) continue;
    ++listed;
    text += (text.empty() ? "" : ", ") + domain::host_name(static_cast<int>(rank)) + " on " +
            attempt.ranks[rank].node;
    const auto guard = state.guards.find(detail::launch_of(attempt, rank));
    if (guard != state.guards.end() && !guard->second.message.empty())
      text += " (" + guard->second.message + ")";
  }
  if (total > listed) text += " and " + std::to_string(total - listed) + " more";
  return std::to_string(job.nodes - total) + " of " + std::to_string(job.nodes) +
         (total == 0 ? "" : "; waits for " + text);
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
    if (!state.inventory_known) return "waits: the engine has not yet said which nodes there are";
    const auto place = std::lower_bound(state.queue.begin(), state.queue.end(), id);
    MUSTER_ASSERT(place != state.queue.end() && *place == id);
    const auto blocked =
        scheduler::blocked(detail::snapshot(state), detail::queue(state, state.nodes.size() + 1),
                           static_cast<std::size_t>(place - state.queue.begin()));
    return blocked ? "waits: " + scheduler::describe(*blocked) : "starts now";
  }
  const auto& attempt = state.attempts.at(job.attempt);
  std::string text = job.stop ? "is stopping (" + std::string(to_string(job.stop->cause)) + "): " : "";
  switch (job.phase) {
    case Phase::launching:
    case Phase::preparing:
      if (job.stop) break;
      return "nodes ready: " +
             list_hosts(job, attempt, state, [](RankPhase p) { return p < RankPhase::ready; });
    case Phase::ready:
      return text + "every node is ready; the commands start";
    case Phase::running:
      if (job.stop) break;
      return "running on " + std::to_string(job.nodes) + (job.nodes == 1 ? " node for " : " nodes for ") +
             format_duration(now - attempt.started.value_or(now));
    case Phase::finishing:
      return text + "uploads done: " + list_hosts(job, attempt, state, [](RankPhase p) {
               return p < RankPhase::uploaded;
             });
    case Phase::queued:
    case Phase::ended:
      return {};
  }
  return text + "commands ended: " + list_hosts(job, attempt, state, [](RankPhase p) {
           return p < RankPhase::exited;
         });
}

}  // namespace muster::control
