#include "control/detail/edit.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace muster::control::detail {

using domain::Cause;
using domain::Outcome;
using domain::Phase;
using domain::RankPhase;

namespace {

constexpr std::size_t kMessageMax = 512;

bool all_ranks(const domain::Attempt& attempt, bool (*test)(RankPhase)) {
  return std::all_of(attempt.ranks.begin(), attempt.ranks.end(),
                     [test](const domain::Rank& rank) { return test(rank.phase); });
}

}  // namespace

Edit::Edit(const State& from, domain::JobId id, Time at) : state(from), now(at), job(from.jobs.at(id)) {
  if (job.phase == Phase::queued) return;
  attempt = from.attempts.at(job.attempt);
}

void Edit::enter(Phase phase, std::string message) {
  job.phase = phase;
  job.modified = now;
  job.history.push_back({now, phase, job.stop.has_value(), std::max(job.attempts, 1),
                         clip_characters(message, kMessageMax, "...")});
}

void Edit::stop(Cause cause, Millis grace, std::string reason, std::optional<int> exit_code,
                const std::string& message) {
  if (job.stop) {
    if (cause != Cause::user || job.stop->cause == Cause::user || job.stop->cause == Cause::limit) return;
    job.stop->cause = Cause::user;
    job.stop->reason = clip_characters(reason, domain::kReasonMax, "...");
  } else {
    job.stop = domain::Stop{cause, now, std::min(grace, job.grace),
                            clip_characters(reason, domain::kReasonMax, "..."), exit_code};
  }
  enter(job.phase, message);
}

void Edit::lose(std::size_t rank, const std::string& why) {
  auto& lost = attempt->ranks.at(rank);
  if (is_over(lost.phase)) return;
  job.modified = now;
  if (lost.phase == RankPhase::uploaded) {  // its work is in the store; only its farewell is missing
    lost.phase = RankPhase::finished;
    return;
  }
  lost.phase = RankPhase::lost;
  const auto reason = domain::host_name(static_cast<int>(rank)) + " on " + lost.node + " was lost: " + why;
  stop(Cause::infrastructure, kFailureGrace, reason, std::nullopt, "Stopping: " + reason);
}

void Edit::end(domain::End how, std::string message) {
  how.reason = clip_characters(how.reason, domain::kReasonMax, "...");
  how.exit_message = clip_characters(how.exit_message, domain::kReasonMax, "...");
  job.end = std::move(how);
  job.ended = now;
  if (attempt) erase_attempt_ = attempt->id;
  attempt.reset();
  enter(Phase::ended, std::move(message));
}

void Edit::settle() {
  if (job.phase == Phase::ended || !attempt) return;
  const auto& ranks = attempt->ranks;
  if (all_ranks(*attempt, is_over)) return conclude();
  const auto reported = [](const domain::Rank& rank) {
    return rank.phase != RankPhase::starting && rank.phase != RankPhase::lost;
  };
  if (job.phase == Phase::launching && std::any_of(ranks.begin(), ranks.end(), reported))
    enter(Phase::preparing, "Preparing the input data");
  if (all_ranks(*attempt, has_exited)) {
    if (job.phase == Phase::finishing) return;
    return enter(Phase::finishing, job.stop ? "Stopped; uploading what the job wrote to S3"
                                            : "Uploading what the job wrote to S3");
  }
  const auto any = [&](RankPhase phase) {
    return std::any_of(ranks.begin(), ranks.end(), [phase](const auto& rank) { return rank.phase == phase; });
  };
  if (job.phase < Phase::ready && !job.stop &&
      all_ranks(*attempt, [](RankPhase phase) { return phase == RankPhase::ready; })) {
    enter(Phase::ready,
          "All nodes are ready: " + std::to_string(job.nodes) + " of " + std::to_string(job.nodes));
  }
  if (job.phase < Phase::running && any(RankPhase::running)) {
    if (!job.started) job.started = now;
    attempt->started = now;
    enter(Phase::running,
          "The command runs on " + std::to_string(job.nodes) + (job.nodes == 1 ? " node" : " nodes"));
  }
}

void Edit::conclude() {
  const auto& first = attempt->ranks.front();
  const auto said = first.exit ? first.exit->message : std::string();
  if (!job.stop) {
    return end({.outcome = Outcome::succeeded,
                .cause = Cause::program,
                .reason = {},
                .exit_code = 0,
                .exit_message = said},
               "Succeeded");
  }
  domain::End how{.outcome = Outcome::stopped,
                  .cause = job.stop->cause,
                  .reason = job.stop->reason,
                  .exit_code = job.stop->exit_code,
                  .exit_message = said};
  switch (job.stop->cause) {
    case Cause::user: {
      auto message = "Stopped " + (how.reason.empty() ? "by request" : how.reason);
      if (said.empty() && !how.reason.empty()) how.exit_message = message;
      return end(std::move(how), std::move(message));
    }
    case Cause::limit:
      return end(std::move(how), "Stopped at its run time limit of " + format_duration(job.max_runtime));
    case Cause::program: {
      how.outcome = Outcome::failed;
      auto message = "Failed: " + how.reason;
      return end(std::move(how), std::move(message));
    }
    case Cause::infrastructure:
      return retry_or_fail();
  }
}

void Edit::retry_or_fail() {
  job.ran += run_time(state, *attempt);
  const auto reason = job.stop->reason;
  if (job.attempts > job.retries) {
    const auto tries = job.attempts == 1 ? ""
                                         : " (attempt " + std::to_string(job.attempts) + " of " +
                                               std::to_string(job.retries + 1) + ")";
    domain::End how{.outcome = Outcome::failed,
                    .cause = Cause::infrastructure,
                    .reason = reason + tries,
                    .exit_code = std::nullopt,
                    .exit_message = {}};
    auto message = "Failed: " + how.reason;
    return end(std::move(how), std::move(message));
  }
  if (job.ran >= job.max_runtime) {
    return end({.outcome = Outcome::stopped,
                .cause = Cause::limit,
                .reason = reason,
                .exit_code = std::nullopt,
                .exit_message = {}},
               "Stopped at its run time limit of " + format_duration(job.max_runtime));
  }
  erase_attempt_ = attempt->id;
  attempt.reset();
  job.stop.reset();
  enter(Phase::queued, "Restarting as attempt " + std::to_string(job.attempts + 1) + " of " +
                           std::to_string(job.retries + 1) + ": " + reason);
}

void Edit::save(domain::Commit& commit) const {
  const auto live = state.jobs.find(job.id);
  if (live == state.jobs.end() || !(live->second == job)) commit.changes.emplace_back(domain::Put{job});
  if (erase_attempt_) {
    commit.changes.emplace_back(domain::Erase{domain::RecordKind::attempt, to_string(*erase_attempt_)});
  }
  if (!attempt) return;
  const auto known = state.attempts.find(attempt->id);
  if (known == state.attempts.end() || !(known->second == *attempt)) {
    commit.changes.emplace_back(domain::Put{*attempt});
  }
}

Millis run_time(const State& state, const domain::Attempt& attempt) {
  const auto running = state.running.find(attempt.id);
  return running == state.running.end() ? attempt.ran : running->second;
}

std::string failure_of(const domain::RankExit& exit) {
  if (!exit.reason.empty()) return exit.reason;
  if (exit.signal != 0) return "killed by signal " + std::to_string(exit.signal);
  if (!exit.exit_code) return "ended before its command ran";
  if (*exit.exit_code != 0) return "exit code " + std::to_string(*exit.exit_code);
  return {};
}

scheduler::Snapshot snapshot(const State& state) {
  std::map<std::string_view, std::string> holders;
  for (const auto& [id, attempt] : state.attempts) {
    const auto& name = state.jobs.at(attempt.job).name;
    for (const auto& rank : attempt.ranks) holders.emplace(rank.node, "job " + name);
  }
  for (const auto& [launch, seen] : state.seen) {
    if (!seen.node.empty()) holders.emplace(seen.node, "the clean-up of an earlier job");
  }
  scheduler::Snapshot result;
  for (const auto& node : state.nodes) {
    const auto holder = holders.find(node.name);
    result.nodes.push_back(
        {node.name, node.healthy, node.message, holder == holders.end() ? "" : holder->second});
  }
  return result;
}

std::vector<scheduler::Gang> queue(const State& state, std::size_t gangs_max) {
  std::vector<scheduler::Gang> result;
  for (const auto id : state.queue) {
    if (result.size() == gangs_max) break;
    const auto& job = state.jobs.at(id);
    result.push_back({id, job.name, job.nodes});
  }
  return result;
}

}  // namespace muster::control::detail
