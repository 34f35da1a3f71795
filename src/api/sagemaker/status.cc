#include "api/sagemaker/status.h"

#include <algorithm>

#include "base/assert.h"
#include "base/text.h"

namespace muster::api::sagemaker {

using domain::Cause;
using domain::Job;
using domain::Outcome;
using domain::Phase;

namespace {

std::string_view ended_status(Outcome outcome) {
  switch (outcome) {
    case Outcome::succeeded:
      return "Completed";
    case Outcome::failed:
      return "Failed";
    case Outcome::stopped:
      return "Stopped";
  }
  return "Failed";
}

// A job that was placed within this time of entering the queue never shows as Pending.
constexpr Millis kWaitShown{1000};

std::optional<Cause> stop_of(const Job& job) {
  return job.stop ? std::optional(job.stop->cause) : std::nullopt;
}

bool shows_stopping(std::optional<Cause> stop) { return stop == Cause::user || stop == Cause::limit; }

}  // namespace

std::string_view primary_status(Phase phase, std::optional<Cause> stop, std::optional<Outcome> outcome) {
  if (phase == Phase::ended) return ended_status(outcome.value_or(Outcome::failed));
  return shows_stopping(stop) ? "Stopping" : "InProgress";
}

std::string_view primary_status(const Job& job) {
  return primary_status(job.phase, stop_of(job), job.end ? std::optional(job.end->outcome) : std::nullopt);
}

std::string_view secondary_status(Phase phase, std::optional<Cause> stop, std::optional<Outcome> outcome,
                                  std::optional<Cause> cause) {
  if (shows_stopping(stop) && phase != Phase::finishing && phase != Phase::ended) return "Stopping";
  switch (phase) {
    case Phase::queued:
      return "Pending";
    case Phase::launching:
      return "Starting";
    case Phase::preparing:
    case Phase::ready:
      return "Downloading";
    case Phase::running:
      return "Training";
    case Phase::finishing:
      return "Uploading";
    case Phase::ended:
      break;
  }
  if (outcome == Outcome::stopped && cause == Cause::limit) return "MaxRuntimeExceeded";
  return ended_status(outcome.value_or(Outcome::failed));
}

std::vector<StatusTransition> secondary_transitions(const Job& job, std::string_view explanation,
                                                    std::string_view notice) {
  std::vector<StatusTransition> out;
  const auto enter = [&](std::string_view status, Time at, std::string message) {
    if (!out.empty() && out.back().status == status) {
      if (!message.empty()) out.back().message = std::move(message);
      return;
    }
    if (!out.empty()) out.back().end = at;
    out.push_back({status, at, std::nullopt, std::move(message)});
  };
  const auto starting = [&](Time at) {
    enter("Starting", at, "Gathering the nodes" + (notice.empty() ? "" : "; " + std::string(notice)));
  };
  for (std::size_t i = 0; i < job.history.size(); ++i) {
    const auto& entry = job.history[i];
    const bool last = i + 1 == job.history.size();
    if (entry.phase == Phase::queued && !entry.stopping) {
      starting(entry.at);
      if (last || job.history[i + 1].at - entry.at >= kWaitShown) {
        enter("Pending", entry.at, last && !explanation.empty() ? std::string(explanation) : entry.message);
      }
    } else if (entry.phase == Phase::launching && !entry.stopping) {
      if (out.empty()) starting(entry.at);
    } else {
      const auto outcome = job.end ? std::optional(job.end->outcome) : std::nullopt;
      const auto cause = job.end ? std::optional(job.end->cause) : std::nullopt;
      // The stop of an earlier attempt was a failure that has been retried, whatever stops the job now.
      const bool stopping = entry.stopping && entry.attempt == std::max(job.attempts, 1);
      const auto status =
          secondary_status(entry.phase, stopping ? stop_of(job) : std::nullopt, outcome, cause);
      enter(status, entry.at, last && !explanation.empty() ? std::string(explanation) : entry.message);
    }
  }
  if (out.empty()) starting(job.created);
  if (job.ended) out.back().end = job.ended;
  return out;
}

std::string failure_reason(const Job& job) {
  if (!job.end || job.end->outcome != Outcome::failed) return {};
  const bool program = job.end->cause == Cause::program;
  const std::string_view kind = program ? "AlgorithmError: " : "InternalServerError: ";
  auto reason = std::string(kind) + job.end->reason;
  if (program && job.end->exit_code && reason.find("exit code") == std::string::npos) {
    const auto code = ", exit code: " + std::to_string(*job.end->exit_code);
    return clip_characters(reason, domain::kReasonMax - code.size()) + code;
  }
  return clip_characters(reason, domain::kReasonMax);
}

}  // namespace muster::api::sagemaker
