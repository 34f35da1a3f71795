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
  void prune_asked(Time before);
  void prune_answered() { --prunes_open_; }

  // After each durable commit.
  void committed(const control::State& before, const control::State& durable);
  // A prune has forgotten the job; null: it had ended in the very commit that forgot it.
  void forgotten(domain::JobKind kind, const std::string& name, const domain::Job* job,
                 const SimEngine& engine);
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
  // At the end of a world whose faults have stopped.
  void ended(const control::State& durable, const SimEngine& engine,
             const std::map<std::string, domain::Job>& jobs, ports::LogStore& logs);
  std::size_t forgotten_jobs() const { return forgotten_.size(); }

 private:
  void check_order(const control::State& before, const control::State& durable);
  void check_placement(const control::State& durable);
  void check_outcome(const domain::Job& job, const SimEngine& engine);
  bool may_forget(Time ended) const { return prunes_open_ > 0 && ended < prune_before_; }
  int hits_of(domain::JobId job, const SimEngine& engine) const;

  std::vector<std::string> violations_;
  std::map<std::string, JobPlan> plans_;  // accepted
  std::set<std::string> stopped_;
  std::map<domain::AttemptId, domain::JobId> attempts_;
  std::map<domain::AttemptId, int> at_barrier_;
  std::map<domain::AttemptId, Millis> failed_at_;
  int prunes_open_ = 0;  // asked for and not answered
  Time prune_before_;    // the latest that any asked for
  struct Forgotten {
    domain::JobKind kind = domain::JobKind::training;
    std::string name;
    Time ended;
  };
  std::vector<Forgotten> forgotten_;
};

}  // namespace muster::sim
