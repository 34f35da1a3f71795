// What must hold in every world, at every commit and at the end. A violation is kept as a sentence. One
// thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "control/state.h"
#include "sim/world/engine.h"
#include "sim/world/runner.h"

namespace muster::sim {

class Checkers {
 public:
  const std::vector<std::string>& violations() const { return violations_; }
  void violation(const std::string& what) { violations_.push_back(what); }

  // What clients were promised.
  void planned(const JobPlan& plan) { plans_[plan.name] = plan; }
  void submitted(domain::JobKind kind, const std::string& name, const control::State& durable);
  void stop_accepted(const std::string& name) { stopped_.insert(name); }
  void pruned(const std::string& name) { plans_.erase(name); }

  // After each durable commit.
  void committed(const control::State& before, const control::State& durable);
  // A restarted process has loaded.
  void loaded(const control::State& state, const control::State& durable);
  // The live state after a step, with nothing uncommitted.
  void stepped(const control::State& state, const control::State& durable);
  // A launch is about to leave.
  void launching(domain::AttemptId attempt, const control::State& durable);
  // A command starts: all of its gang have come to the barrier.
  void command_started(const domain::LaunchId& id, const SimEngine& engine);
  // A command has ended; the others of its gang must follow a failure within 5 s.
  void command_ended(const domain::LaunchId& id, const domain::RankExit& exit, Millis at);
  // At the end of a world whose faults have stopped. `end` answers a job's end.
  void ended(const control::State& durable, const SimEngine& engine,
             const std::map<std::string, domain::Job>& jobs);

 private:
  void check_order(const control::State& before, const control::State& durable);
  void check_placement(const control::State& durable);
  void check_outcome(const domain::Job& job, int hits);

  std::vector<std::string> violations_;
  std::map<std::string, JobPlan> plans_;  // accepted
  std::set<std::string> stopped_;
  std::map<domain::AttemptId, domain::JobId> attempts_;
  std::map<domain::AttemptId, int> at_barrier_;
  std::map<domain::AttemptId, Millis> failed_at_;
};

}  // namespace muster::sim
