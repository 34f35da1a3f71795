// Helpers inside control: one job changed on a copy, and the rules that follow from a change. Pure; one
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "control/control.h"
#include "control/state.h"
#include "scheduler/cycle.h"

namespace muster::control::detail {

// A live job and its attempt, copied out of the state. save() adds to a Commit what has changed.
struct Edit {
  Edit(const State& from, domain::JobId id, Time at);

  const State& state;
  Time now;
  domain::Job job;
  std::optional<domain::Attempt> attempt;  // none while queued

  void enter(domain::Phase phase, std::string message);
  // The job's commands must end. The first cause stays, but a user's stop wins over every other.
  void stop(domain::Cause cause, Millis grace, std::string reason, std::optional<int> exit_code,
            const std::string& message);
  void lose(std::size_t rank, const std::string& why);
  void end(domain::End how, std::string message);
  // Moves the phase to where the ranks are: barrier, finishing, ended or the next attempt.
  void settle();
  void save(domain::Commit& commit) const;

 private:
  void conclude();
  void retry_or_fail();
  std::optional<domain::AttemptId> erase_attempt_;
};

inline domain::LaunchId launch_of(const domain::Attempt& attempt, std::size_t rank) {
  return {attempt.id, static_cast<int>(rank), attempt.ranks[rank].incarnation};
}

// How long the command of the attempt has run. By ticks, so a step of the wall clock does not count, nor does
// the time in which no control process looked.
Millis run_time(const State& state, const domain::Attempt& attempt);

inline bool is_over(domain::RankPhase phase) {
  return phase == domain::RankPhase::finished || phase == domain::RankPhase::lost;
}
inline bool has_exited(domain::RankPhase phase) { return phase >= domain::RankPhase::exited; }

// Empty when the work of the rank went well.
std::string failure_of(const domain::RankExit& exit);

// The nodes with their holders, and the first waiting gangs in order.
scheduler::Snapshot snapshot(const State& state);
std::vector<scheduler::Gang> queue(const State& state, std::size_t gangs_max);

}  // namespace muster::control::detail
