#include "runner/core/core.h"

#include <array>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/text.h"

namespace muster::runner::core {
namespace {

using domain::Cause;
using domain::RankPhase;
using domain::Target;

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : "SIG" + std::string(name);
}

}  // namespace

std::string_view to_string(Step step) {
  static constexpr std::array<std::string_view, 10> kWords = {"created", "staging", "ready",     "starting",
                                                              "running", "exited",  "uploading", "uploaded",
                                                              "closing", "done"};
  return kWords.at(static_cast<std::size_t>(step));
}

std::string_view to_string(Timer timer) {
  static constexpr std::array<std::string_view, 4> kWords = {"preparing", "kill", "limit", "leave"};
  return kWords.at(static_cast<std::size_t>(timer));
}

std::string exit_reason(const input::Exited& exited) {
  if (exited.exit_code == 0) return {};
  if (!trim(exited.failure_file).empty()) return clip_characters(exited.failure_file, domain::kReasonMax);
  auto reason = exited.exit_code ? "exit code " + std::to_string(*exited.exit_code)
                                 : "killed by signal " + std::to_string(exited.signal) + " (" +
                                       signal_name(exited.signal) + ")";
  if (!exited.tail.empty()) {
    // The last lines say most: the beginning of a long tail gives way.
    reason += ": ";
    const auto room = domain::kReasonMax - reason.size();
    auto tail = to_utf8_lossy(exited.tail);
    if (tail.size() > room) {
      auto from = tail.size() - room;
      while (from < tail.size() && (static_cast<unsigned char>(tail[from]) & 0xC0U) == 0x80U) ++from;
      tail.erase(0, from);
    }
    reason += tail;
  }
  return reason;
}

std::vector<Action> Core::handle(const Input& input) {
  MUSTER_ASSERT(actions_.empty());
  if (step_ != Step::done) {
    std::visit([this](const auto& value) { on(value); }, input);
  }
  return std::exchange(actions_, {});
}

void Core::report(RankPhase phase, std::string message) {
  action::Report out;
  out.report.launch = config_.launch;
  out.report.number = ++reports_;
  out.report.phase = phase;
  out.report.message = std::move(message);
  out.report.exit = exit_;
  actions_.emplace_back(std::move(out));
}

void Core::on(const input::Begin&) {
  MUSTER_ASSERT(step_ == Step::created);
  step_ = Step::staging;
  actions_.emplace_back(action::Stage{});
  // A report costs the control plane a commit, and the next one waits for it.
  actions_.emplace_back(action::SetTimer{Timer::preparing, config_.preparing});
}

void Core::on(const input::Desire& in) {
  desired_ = in.desired;  // one poll at a time: an answer is never overtaken
  pursue();
}

void Core::on(const input::Staged& in) {
  if (step_ != Step::staging) return;  // given up before
  if (in.failure) {
    end_without_command(in.failure->cause, in.failure->reason);
  } else {
    step_ = Step::ready;
    report(RankPhase::ready, in.message);
  }
  pursue();
}

void Core::on(const input::Started&) {
  MUSTER_ASSERT(step_ == Step::starting);
  step_ = Step::running;
  ran_ = true;
  report(RankPhase::running, "");
  actions_.emplace_back(action::SetTimer{Timer::limit, config_.max_runtime});
  pursue();
}

void Core::on(const input::NotStarted& in) {
  MUSTER_ASSERT(step_ == Step::starting);
  end_without_command(Cause::program, in.reason);
  pursue();
}

void Core::on(const input::Exited& in) {
  MUSTER_ASSERT(step_ == Step::running);
  step_ = Step::exited;
  actions_.emplace_back(action::ClearTimer{Timer::kill});
  actions_.emplace_back(action::ClearTimer{Timer::limit});
  auto& exit = exit_.emplace();
  exit.exit_code = in.exit_code;
  exit.signal = in.signal;
  exit.cause = stopping_.value_or(Cause::program);
  exit.reason = exit_reason(in);
  if (exit.cause == Cause::limit) {
    exit.reason = "ran longer than the maximum run time of " + format_duration(config_.max_runtime);
  }
  exit.message = clip_characters(in.message_file, domain::kReasonMax);
  report(RankPhase::exited,
         in.exit_code ? "exit code " + std::to_string(*in.exit_code) : "killed by " + signal_name(in.signal));
  pursue();
}

void Core::on(const input::Uploaded& in) {
  if (step_ != Step::uploading) return;  // given up before
  step_ = Step::uploaded;
  if (in.failure) {
    actions_.emplace_back(action::Log{"muster: " + in.failure->reason});
    if (!exit_) exit_.emplace();
    if (exit_->reason.empty()) {
      exit_->cause = in.failure->cause;
      exit_->reason = clip_characters(in.failure->reason, domain::kReasonMax);
    }
  }
  report(RankPhase::uploaded, in.failure ? in.failure->reason : in.message);
  pursue();
}

void Core::on(const input::LogsDelivered& in) {
  logs_error_ = in.error;
  if (step_ == Step::closing) farewell();
}

void Core::on(const input::ReportsDelivered&) {
  if (step_ != Step::closing) return;
  step_ = Step::done;
  actions_.emplace_back(action::Exit{terminate_ ? kExitTerminated : kExitDone});
}

void Core::on(const input::TimerFired& in) {
  switch (in.timer) {
    case Timer::preparing:
      if (step_ == Step::staging) report(RankPhase::preparing, "");
      return;
    case Timer::kill:
      if (step_ == Step::running) actions_.emplace_back(action::Signal{SIGKILL});
      return;
    case Timer::limit:
      if (step_ != Step::running || stopping_) return;
      actions_.emplace_back(action::Log{"muster: the maximum run time of " +
                                        format_duration(config_.max_runtime) +
                                        " is over: stopping the command"});
      stop_command(Cause::limit, config_.grace);
      return;
    case Timer::leave:
      abandon(kExitTerminated);
      return;
  }
}

void Core::on(const input::Stale&) {
  // After the final report the control plane forgets the launch: a good end looks like this, too.
  const bool finished = step_ == Step::closing && reported_end_;
  abandon(finished ? (terminate_ ? kExitTerminated : kExitDone) : kExitStale);
}

void Core::on(const input::GaveUp& in) {
  actions_.emplace_back(action::Log{"muster: " + in.reason});
  abandon(kExitGaveUp);
}

void Core::on(const input::Terminate&) {
  if (terminate_) return;
  terminate_ = true;
  if (step_ == Step::closing) actions_.emplace_back(action::SetTimer{Timer::leave, config_.leave});
  pursue();
}

void Core::pursue() {
  const bool stop = desired_.stop || terminate_;
  const Cause cause = desired_.stop ? desired_.stop_cause : Cause::infrastructure;
  const bool over = desired_.target == Target::upload || desired_.target == Target::exit;
  switch (step_) {
    case Step::staging:
    case Step::ready:
      if (stop || over) {
        if (step_ == Step::staging) actions_.emplace_back(action::CancelTransfers{});
        end_without_command(cause, "");
        pursue();
      } else if (step_ == Step::ready && desired_.target == Target::run) {
        step_ = Step::starting;
        actions_.emplace_back(action::Start{});
      }
      return;
    case Step::running:
      if (!stop && !over) return;
      if (!stopping_) {
        stop_command(cause, desired_.stop ? desired_.grace : config_.grace);
      } else if (desired_.stop && desired_.grace < stop_grace_) {  // a second, more urgent stop
        stop_grace_ = desired_.grace;
        actions_.emplace_back(action::SetTimer{Timer::kill, stop_grace_});
      }
      return;
    case Step::exited:
      if (desired_.target == Target::upload && !terminate_) {
        step_ = Step::uploading;
        report(RankPhase::uploading, "");
        if (ran_) {
          actions_.emplace_back(action::Upload{});
        } else {
          on(input::Uploaded{"nothing to upload: the command did not run", {}});
        }
        return;
      }
      [[fallthrough]];
    case Step::uploaded:
      if (desired_.target == Target::exit || terminate_) close();
      return;
    case Step::uploading:
      if (desired_.target == Target::exit) {
        actions_.emplace_back(action::CancelTransfers{});
        close();
      }
      return;
    case Step::created:
    case Step::starting:
    case Step::closing:
    case Step::done:
      return;
  }
}

void Core::stop_command(Cause cause, Millis grace) {
  stopping_ = cause;
  stop_grace_ = grace;
  actions_.emplace_back(action::Signal{SIGTERM});
  actions_.emplace_back(action::SetTimer{Timer::kill, grace});
}

void Core::end_without_command(Cause cause, std::string reason) {
  step_ = Step::exited;
  auto& exit = exit_.emplace();
  exit.cause = cause;
  exit.reason = clip_characters(reason, domain::kReasonMax);
  if (!reason.empty()) actions_.emplace_back(action::Log{"muster: " + reason});
  report(RankPhase::exited, reason.empty() ? "stopped before the command ran" : reason);
}

void Core::close() {
  step_ = Step::closing;
  if (terminate_) actions_.emplace_back(action::SetTimer{Timer::leave, config_.leave});
  if (logs_error_) {
    farewell();  // it ended before its time, and nobody will say so again
  } else {
    actions_.emplace_back(action::DeliverLogs{});
  }
}

void Core::farewell() {
  report(RankPhase::finished, *logs_error_);
  reported_end_ = true;
  actions_.emplace_back(action::DeliverReports{});
}

void Core::abandon(int code) {
  actions_.emplace_back(action::CancelTransfers{});
  actions_.emplace_back(action::Signal{SIGKILL});
  step_ = Step::done;
  actions_.emplace_back(action::Exit{code});
}

}  // namespace muster::runner::core
