#include "sim/checkers/checkers.h"

#include <algorithm>

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
    if (now == durable.ended.end()) {
      const auto name = durable.names.find({job.kind, job.name});
      if (name != durable.names.end() && name->second == id)
        violation("job " + job.name + " is gone, but its name is not free");
      if (!may_forget(job.ended)) violation("job " + job.name + " had ended and is lost");
    } else if (!(now->second == job)) {
      violation("job " + job.name + " had ended as " + std::string(to_string(job.outcome)) +
                " and changed again");
    }
  }
  for (const auto& [id, job] : before.jobs) {
    if (!durable.jobs.contains(id) && !durable.ended.contains(id) && !may_forget(before.counters.last_time))
      violation("job " + job.name + " is lost");
  }
  if (durable.counters.last_time < before.counters.last_time) violation("the committed time went back");
}

void Checkers::prune_asked(Time before) {
  ++prunes_open_;
  prune_before_ = std::max(prune_before_, before);
}

void Checkers::forgotten(domain::JobKind kind, const std::string& name, const domain::Job* job,
                         const SimEngine& engine) {
  if (job != nullptr) {
    if (plans_.contains(name)) check_outcome(*job, engine);
    forgotten_.push_back({kind, name, job->ended.value()});
  }
  plans_.erase(name);
  stopped_.erase(name);
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

// Attempts of the job that something hit.
int Checkers::hits_of(domain::JobId job, const SimEngine& engine) const {
  return static_cast<int>(std::count_if(engine.hit().begin(), engine.hit().end(), [&](const auto attempt) {
    const auto found = attempts_.find(attempt);
    return found != attempts_.end() && found->second == job;
  }));
}

void Checkers::check_outcome(const domain::Job& job, const SimEngine& engine) {
  const auto& plan = plans_.at(job.name);
  const auto& program = plan.program;
  const auto& end = *job.end;
  const auto is = [&](Outcome outcome, Cause cause) { return end.outcome == outcome && end.cause == cause; };
  const auto said = std::string(to_string(end.outcome)) + "/" + std::string(to_string(end.cause)) + " \"" +
                    end.reason + "\"";
  // An attempt that nothing hit is neither given up nor repeated.
  const int hits = hits_of(job.id, engine);
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
                     const std::map<std::string, domain::Job>& jobs, ports::LogStore& logs) {
  for (const auto& [id, job] : durable.jobs) {
    violation("job " + job.name + " never ended: " + std::string(to_string(job.phase)));
  }
  for (const auto& [id, process] : engine.processes()) {
    violation("launch " + to_string(id) + " was left behind on " + process.node);
  }
  for (const auto& [sequence, outbox] : durable.outbox) {
    violation("outbox entry " + std::to_string(sequence) + " was never carried out: " + outbox.body);
  }
  for (const auto& job : forgotten_) {
    const auto streams = logs.streams(domain::log_group(job.kind), job.name + "/").value();
    for (const auto& stream : streams) {
      if (stream.created <= job.ended)
        violation("log stream " + stream.name + " has outlived its job, which was forgotten");
    }
  }
  for (const auto& [name, plan] : plans_) {
    const auto job = jobs.find(name);
    if (job == jobs.end() || !job->second.end) {
      violation("job " + name + " was accepted and has no end");
      continue;
    }
    check_outcome(job->second, engine);
  }
}

}  // namespace muster::sim
