// decide(): what one event makes durable.
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "control/control.h"
#include "control/detail/edit.h"

namespace muster::control {
namespace {

using detail::Edit;
using domain::Cause;
using domain::Phase;
using domain::RankPhase;
using domain::ReportAnswer;

std::string title(domain::JobKind kind, const std::string& name) {
  return std::string(to_string(kind)) + " job " + name;
}

Decision refuse(ErrorCode code, std::string message) {
  Decision decision;
  decision.reply.emplace().error = Error{code, std::move(message)};
  return decision;
}

// A launch error that another try cannot mend is the job's own.
bool is_permanent(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::not_found ||
         code == ErrorCode::permission_denied || code == ErrorCode::unsupported;
}

struct Decide {
  const State& state;
  Time now;

  Decision operator()(const SubmitJob& event) const {
    if (event.nodes < 1 || event.name.empty()) {
      return refuse(ErrorCode::invalid_argument,
                    "a job needs a name and at least 1 node, not " + std::to_string(event.nodes));
    }
    if (state.names.contains({event.kind, event.name})) {
      return refuse(ErrorCode::already_exists,
                    title(event.kind, event.name) + " exists already: choose another name");
    }
    const auto total = state.nodes.size();
    if (state.inventory_known && static_cast<std::size_t>(event.nodes) > total) {
      return refuse(ErrorCode::resource_exhausted,
                    title(event.kind, event.name) + " needs " + std::to_string(event.nodes) +
                        " nodes, this service has " + std::to_string(total) + ": ask for fewer or add nodes");
    }
    auto counters = state.counters;
    domain::Job job{.id = {counters.next_job++},
                    .kind = event.kind,
                    .name = event.name,
                    .nodes = event.nodes,
                    .max_runtime = event.max_runtime,
                    .grace = event.grace,
                    .retries = event.retries,
                    .created = now,
                    .modified = now,
                    .started = {},
                    .ended = {},
                    .stop = {},
                    .end = {},
                    .attempt = {},
                    .history = {}};
    job.history.push_back(
        {now, Phase::queued, false, 1,
         "Waiting for " + std::to_string(job.nodes) + (job.nodes == 1 ? " node" : " nodes")});
    Decision decision;
    decision.reply.emplace().job = job.id;
    decision.commit.changes.emplace_back(domain::Put{counters});
    decision.commit.changes.emplace_back(
        domain::Put{domain::JobRequest{job.id, event.request, event.workload}});
    decision.commit.changes.emplace_back(domain::Put{std::move(job)});
    return decision;
  }

  Decision operator()(const StopJob& event) const {
    const auto name = state.names.find({event.kind, event.name});
    if (name == state.names.end()) {
      return refuse(ErrorCode::not_found, title(event.kind, event.name) + " does not exist");
    }
    if (const auto ended = state.ended.find(name->second); ended != state.ended.end()) {
      return refuse(ErrorCode::failed_precondition, title(event.kind, event.name) + " has ended (" +
                                                        std::string(to_string(ended->second.outcome)) +
                                                        " at " + format_iso8601(ended->second.ended) +
                                                        ") and cannot be stopped");
    }
    Edit edit(state, name->second, now);
    if (edit.job.phase == Phase::queued) {
      edit.end({.outcome = domain::Outcome::stopped,
                .cause = Cause::user,
                .reason = {},
                .exit_code = {},
                .exit_message = {}},
               "Stopped by request before it started");
    } else {
      edit.stop(Cause::user, edit.job.grace, {}, std::nullopt,
                edit.job.phase == Phase::finishing ? "Stopping: what the job wrote is kept"
                                                   : "Stopping: asked for by a user");
    }
    Decision decision;
    decision.reply.emplace().job = edit.job.id;
    edit.save(decision.commit);
    return decision;
  }

  Decision operator()(const PruneJobs& event) const {
    Decision decision;
    auto& reply = decision.reply.emplace();
    auto counters = state.counters;
    for (const auto& [id, job] : state.ended) {
      if (job.ended >= event.before) continue;
      if (event.only && !event.only->contains({job.kind, job.name})) continue;
      if (reply.pruned.size() == kPruneMax) {
        ++reply.left;
        continue;
      }
      reply.pruned.push_back({job.kind, job.name});
      decision.commit.changes.emplace_back(domain::Erase{domain::RecordKind::job, to_string(id)});
      decision.commit.changes.emplace_back(domain::Erase{domain::RecordKind::request, to_string(id)});
      // Streams made after the end belong to a later job of the same name.
      const json::Object body{
          {"group", domain::log_group(job.kind)}, {"prefix", job.name + "/"}, {"until", job.ended.unix_ms}};
      decision.commit.changes.emplace_back(
          domain::Put{domain::Outbox{counters.next_outbox++, "forget-logs", json::dump(body)}});
    }
    if (!reply.pruned.empty()) decision.commit.changes.emplace_back(domain::Put{counters});
    return decision;
  }

  Decision operator()(const AddAccessKey& event) const {
    Decision decision;
    decision.reply.emplace();
    decision.commit.changes.emplace_back(domain::Put{event.key});
    return decision;
  }

  Decision operator()(const OutboxDone& event) const {
    Decision decision;
    if (!state.outbox.contains(event.sequence)) return decision;
    decision.commit.changes.emplace_back(
        domain::Erase{domain::RecordKind::outbox, std::to_string(event.sequence)});
    return decision;
  }

  Decision operator()(const Report& event) const {
    const auto& report = event.report;
    Decision decision;
    auto& reply = decision.reply.emplace();
    const auto known = current(state, report.launch);
    if (!known || known->rank->phase == RankPhase::lost) {
      reply.answer = ReportAnswer::stale;
      return decision;
    }
    if (report.number != known->rank->reports + 1) {
      reply.answer = report.number <= known->rank->reports ? ReportAnswer::duplicate : ReportAnswer::gap;
      return decision;
    }
    if (auto wrong = protocol_error(*known, report))
      return refuse(ErrorCode::invalid_argument, *std::move(wrong));
    Edit edit(state, known->job->id, now);
    auto& rank = edit.attempt->ranks[static_cast<std::size_t>(report.launch.rank)];
    rank.reports = report.number;
    rank.phase = report.phase;
    edit.job.modified = now;
    if (report.exit) {
      rank.exit = report.exit;
      rank.exit->reason = clip_characters(rank.exit->reason, domain::kReasonMax, "...");
      rank.exit->message = clip_characters(rank.exit->message, domain::kReasonMax, "...");
      take_exit(edit, report);
    }
    edit.settle();
    edit.save(decision.commit);
    return decision;
  }

  Decision operator()(const LaunchDone& event) const {
    Decision decision;
    const auto attempt = state.attempts.find(event.attempt);
    if (!event.error || attempt == state.attempts.end()) return decision;
    Edit edit(state, attempt->second.job, now);
    const auto reason = "the launch failed: " + event.error->message;
    edit.stop(is_permanent(event.error->code) ? Cause::program : Cause::infrastructure, kFailureGrace, reason,
              std::nullopt, "Stopping: " + reason);
    for (std::size_t rank = 0; rank < attempt->second.ranks.size(); ++rank) {
      const auto seen = state.seen.find(detail::launch_of(attempt->second, rank));
      const bool alive = seen != state.seen.end() && seen->second.alive;
      if (attempt->second.ranks[rank].phase == RankPhase::starting && !alive) edit.lose(rank, reason);
    }
    edit.settle();
    edit.save(decision.commit);
    return decision;
  }

  Decision operator()(const RankGone& event) const {
    Decision decision;
    const auto known = current(state, event.launch);
    if (!known || detail::is_over(known->rank->phase)) return decision;
    Edit edit(state, known->job->id, now);
    edit.lose(static_cast<std::size_t>(event.launch.rank), event.message);
    edit.settle();
    edit.save(decision.commit);
    return decision;
  }

  Decision operator()(const RankKilled& event) const {
    Decision decision;
    decision.reply.emplace();
    const auto known = current(state, event.launch);
    if (!known) return decision;
    decision.reply->job = known->job->id;
    Edit edit(state, known->job->id, now);
    edit.stop(Cause::user, Millis{0}, event.how, std::nullopt, "Stopped " + event.how);
    edit.save(decision.commit);
    return decision;
  }

  // Ranks that the engine no longer has are lost.
  Decision operator()(const EngineInventory&) const {
    Decision decision;
    for (const auto& [id, attempt] : state.attempts) {
      if (state.launching.contains(id)) continue;
      Edit edit(state, attempt.job, now);
      for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
        const auto why = gone(attempt, rank, edit.job.stop.has_value());
        if (!why.empty()) edit.lose(rank, std::string(why));
      }
      edit.settle();
      edit.save(decision.commit);
    }
    return decision;
  }

  // Leases, and limits that a runner should have kept itself.
  Decision operator()(const Tick&) const {
    Decision decision;
    for (const auto& [id, attempt] : state.attempts) {
      if (state.launching.contains(id) || !state.inventory_known) continue;
      Edit edit(state, attempt.job, now);
      const auto run_max = edit.job.max_runtime - edit.job.ran + edit.job.grace + kSlack;
      for (std::size_t rank = 0; rank < attempt.ranks.size(); ++rank) {
        const auto guard = state.guards.find(detail::launch_of(attempt, rank));
        if (guard == state.guards.end() || detail::is_over(attempt.ranks[rank].phase)) continue;
        if (guard->second.silent > kLease)
          edit.lose(rank, "no word from its runner for " + format_duration(guard->second.silent));
      }
      const auto ran = detail::run_time(state, attempt);
      if (ran > run_max)
        edit.stop(Cause::limit, edit.job.grace, {}, std::nullopt, "Stopping: over its run time limit");
      if (ran >= attempt.ran + kRanKept) edit.attempt->ran = ran;
      edit.settle();
      edit.save(decision.commit);
    }
    return decision;
  }

  template <typename Other>  // volatile only
  Decision operator()(const Other&) const {
    return {};
  }

 private:
  static std::optional<std::string> protocol_error(const Current& known, const domain::RankReport& report) {
    const auto who = "report " + std::to_string(report.number) + " of " + to_string(report.launch);
    const auto phase = report.phase;
    if (phase == RankPhase::starting || phase == RankPhase::lost || phase < known.rank->phase) {
      return who + " says " + std::string(to_string(phase)) + " after " +
             std::string(to_string(known.rank->phase)) + ": a rank does not go back";
    }
    if (phase == RankPhase::running && known.job->phase < Phase::ready) {
      return who + " says running, but the barrier is closed: wait for the target run";
    }
    if (detail::has_exited(phase) && !report.exit) {
      return who + " says " + std::string(to_string(phase)) + " without saying how the command ended";
    }
    return std::nullopt;
  }

  static void take_exit(Edit& edit, const domain::RankReport& report) {
    const auto& exit = *report.exit;
    const auto host = edit.job.nodes == 1 ? std::string() : domain::host_name(report.launch.rank) + ": ";
    if (edit.job.stop) return;  // it has been stopped: how it ended says nothing new
    switch (exit.cause) {
      case Cause::limit:
        return edit.stop(Cause::limit, edit.job.grace, {}, exit.exit_code,
                         "Stopping: its run time limit is reached");
      case Cause::infrastructure: {
        const auto reason = host + detail::failure_of(exit);
        return edit.stop(Cause::infrastructure, kFailureGrace, reason, exit.exit_code, "Stopping: " + reason);
      }
      case Cause::user:
      case Cause::program: {
        const auto failure = detail::failure_of(exit);
        if (failure.empty()) return;
        const auto reason = host + failure;
        return edit.stop(Cause::program, kFailureGrace, reason, exit.exit_code, "Stopping: " + reason);
      }
    }
  }

  // Why the rank counts as gone after an observation, or empty.
  std::string_view gone(const domain::Attempt& attempt, std::size_t rank, bool stopping) const {
    const auto phase = attempt.ranks[rank].phase;
    if (detail::is_over(phase)) return {};
    const auto launch = detail::launch_of(attempt, rank);
    const auto seen = state.seen.find(launch);
    if (seen != state.seen.end()) return seen->second.alive ? "" : "its runner is gone";
    const auto guard = state.guards.find(launch);
    const bool launched = guard != state.guards.end() && guard->second.heard != 0;
    if (phase == RankPhase::starting && !launched) return stopping ? "it was stopped before its start" : "";
    return "the engine no longer has it";
  }
};

}  // namespace

Decision decide(const State& state, const Event& event, Time now) {
  return std::visit(Decide{state, now}, event);
}

domain::Commit schedule(const State& state, Time now) {
  domain::Commit commit;
  if (!state.inventory_known) return commit;
  // Every gang takes a node, and the first that does not fit ends the cycle.
  const auto queue = detail::queue(state, state.nodes.size() + 1);
  if (queue.empty()) return commit;
  auto counters = state.counters;
  for (const auto& admission : scheduler::plan(detail::snapshot(state), queue).admitted) {
    Edit edit(state, admission.job, now);
    domain::Attempt attempt{.id = {counters.next_attempt++},
                            .job = admission.job,
                            .number = edit.job.attempts + 1,
                            .created = now,
                            .started = {},
                            .ranks = {}};
    std::string where;
    for (const auto& node : admission.nodes) {
      attempt.ranks.push_back({.node = node, .exit = {}});
      if (attempt.ranks.size() <= 4) where += (where.empty() ? "" : ", ") + node;
    }
    if (admission.nodes.size() > 4) where += " and " + std::to_string(admission.nodes.size() - 4) + " more";
    edit.job.attempt = attempt.id;
    edit.job.attempts = attempt.number;
    edit.attempt = std::move(attempt);
    edit.enter(Phase::launching, "Starting on " + where);
    edit.save(commit);
  }
  if (!commit.empty()) commit.changes.emplace_back(domain::Put{counters});
  return commit;
}

}  // namespace muster::control
