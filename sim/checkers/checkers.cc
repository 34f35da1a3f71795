#include "sim/checkers/checkers.h"

namespace muster::sim {

using domain::Cause;
using domain::Outcome;

void Checkers::submitted(domain::JobKind kind, const std::string& name, const control::State& durable) {
  if (!durable.names.contains({kind, name}))
    violation("job " + name + " was accepted, but it is not durable");
}

void Checkers::check_placement(const control::State& durable) {
  std::map<domain::NodeName, domain::AttemptId> holders;
  for (const auto& [id, attempt] : durable.attempts) {
    const auto job = durable.jobs.find(attempt.job);
    if (job == durable.jobs.end()) {
      violation("attempt " + to_string(id) + " has no live job");
      continue;
    }
    if (static_cast<int>(attempt.ranks.size()) != job->second.nodes) {
      violation("gang of job " + job->second.name + " has " + std::to_string(attempt.ranks.size()) + " of " +
                std::to_string(job->second.nodes) + " ranks");
    }
    for (const auto& rank : attempt.ranks) {
      if (!holders.emplace(rank.node, id).second) {
        violation("oversubscription: " + rank.node + " is given to attempts " +
                  to_string(holders[rank.node]) + " and " + to_string(id));
      }
    }
  }
}

// Nobody is placed while an earlier job still waits.
void Checkers::check_order(const control::State& before, const control::State& durable) {
  const domain::Job* waiting = nullptr;
  for (const auto& [id, job] : durable.jobs) {
    const auto old = before.jobs.find(id);
    const bool waited = old == before.jobs.end() || old->second.phase == domain::Phase::queued;
    if (job.phase == domain::Phase::queued) {
      if (waiting == nullptr) waiting = &job;
    } else if (waited && waiting != nullptr) {
      violation("job " + job.name + " passes job " + waiting->name + " in the queue");
    }
  }
}

void Checkers::committed(const control::State& before, const control::State& durable) {
  check_placement(durable);
  check_order(before, durable);
  for (const auto& [id, attempt] : durable.attempts) attempts_[id] = attempt.job;
  for (const auto& [id, job] : before.ended) {
    const auto now = durable.ended.find(id);
    const bool forgotten =
        now == durable.ended.end() && !durable.names.contains({job.kind, job.name});  // pruned
    if (!forgotten && (now == durable.ended.end() || !(now->second == job))) {
      violation("job " + job.name + " had ended as " + std::string(to_string(job.outcome)) +
                " and changed again");
    }
  }
  for (const auto& [id, job] : before.jobs) {
    if (!durable.jobs.contains(id) && !durable.ended.contains(id)) violation("job " + job.name + " is lost");
  }
  if (durable.counters.last_time < before.counters.last_time) violation("the committed time went back");
}

void Checkers::loaded(const control::State& state, const control::State& durable) {
  if (!control::same_durable_state(state, durable)) violation("the loaded state is not what was committed");
  for (const auto& [name, plan] : plans_) {
    if (!state.names.contains({plan.kind, name})) violation("job " + name + " is lost after a load");
  }
}

void Checkers::stepped(const control::State& state, const control::State& durable) {
  if (!control::same_durable_state(state, durable)) violation("the live state is not what was committed");
}

void Checkers::launching(domain::AttemptId attempt, const control::State& durable) {
  if (!durable.attempts.contains(attempt)) {
    violation("attempt " + to_string(attempt) + " is launched, but it is not durable");
  }
}

void Checkers::command_started(const domain::LaunchId& id, const SimEngine& engine) {
  const auto started = engine.processes().find(id);
  if (started == engine.processes().end()) return;
  if (at_barrier_.contains(id.attempt)) return;  // the barrier opened before; ranks may have died since
  const int world = started->second.runner->launch().world;
  int ready = 0;
  for (const auto& [other, process] : engine.processes()) {
    if (other.attempt == id.attempt && process.runner->phase() >= domain::RankPhase::ready) ++ready;
  }
  at_barrier_[id.attempt] = ready;
  if (ready != world && !engine.hit().contains(id.attempt)) {
    violation(to_string(id) + " starts its command while " + std::to_string(ready) + " of " +
              std::to_string(world) + " ranks are at the barrier");
  }
}

void Checkers::command_ended(const domain::LaunchId& id, const domain::RankExit& exit, Millis at) {
  const auto failed = failed_at_.find(id.attempt);
  if (failed != failed_at_.end() && at - failed->second > Millis{5'000}) {
    violation(to_string(id) + " ran on for " + std::to_string((at - failed->second).count()) +
              " ms after another rank had failed");
  }
  if (exit.cause == Cause::program && exit.exit_code.value_or(0) != 0) failed_at_.emplace(id.attempt, at);
}

void Checkers::check_outcome(const domain::Job& job, int hits) {
  const auto& plan = plans_.at(job.name);
  const auto& program = plan.program;
  const auto& end = *job.end;
  const auto is = [&](Outcome outcome, Cause cause) { return end.outcome == outcome && end.cause == cause; };
  const auto said = std::string(to_string(end.outcome)) + "/" + std::string(to_string(end.cause)) + " \"" +
                    end.reason + "\"";
  // An attempt that nothing hit is neither given up nor repeated.
  const int needed = is(Outcome::failed, Cause::infrastructure) ? job.attempts : job.attempts - 1;
  if (hits < needed) {
    violation("job " + job.name + " ended " + said + " in attempt " + std::to_string(job.attempts) +
              ", but only " + std::to_string(hits) + " attempts were hit");
  }
  if (stopped_.contains(job.name)) {
    if (end.outcome != Outcome::stopped)
      violation("job " + job.name + " was asked to stop and ended " + said);
    return;
  }
  if (end.outcome == Outcome::stopped && end.cause == Cause::user) {
    return;  // asked for by a client that never heard the answer
  }
  if (is(Outcome::failed, Cause::infrastructure)) {
    if (job.attempts != job.retries + 1) {
      violation("job " + job.name + " gave up in attempt " + std::to_string(job.attempts) + " of " +
                std::to_string(job.retries + 1) + ": " + said);
    }
    return;
  }
  const bool fails = program.failing_rank >= 0 && program.failing_rank < job.nodes;
  const bool limited = program.duration && *program.duration > plan.max_runtime;
  const bool right =
      limited ? is(Outcome::stopped, Cause::limit) || (fails && is(Outcome::failed, Cause::program))
      : fails ? is(Outcome::failed, Cause::program)
              : is(Outcome::succeeded, Cause::program);
  if (!right) violation("job " + job.name + " ended " + said);
  if (is(Outcome::failed, Cause::program) && job.nodes > 1 &&
      end.reason.find(domain::host_name(program.failing_rank) + ": ") != 0) {
    violation("job " + job.name + " blames another rank: " + said);
  }
}

void Checkers::ended(const control::State& durable, const SimEngine& engine,
                     const std::map<std::string, domain::Job>& jobs) {
  for (const auto& [id, job] : durable.jobs) {
    violation("job " + job.name + " never ended: " + std::string(to_string(job.phase)));
  }
  for (const auto& [id, process] : engine.processes()) {
    violation("launch " + to_string(id) + " was left behind on " + process.node);
  }
  std::map<domain::JobId, int> hits;
  for (const auto attempt : engine.hit()) {
    if (attempts_.contains(attempt)) ++hits[attempts_[attempt]];
  }
  for (const auto& [name, plan] : plans_) {
    const auto job = jobs.find(name);
    if (job == jobs.end() || !job->second.end) {
      violation("job " + name + " was accepted and has no end");
      continue;
    }
    check_outcome(job->second, hits[job->second.id]);
  }
}

}  // namespace muster::sim
