#include "sim/world/runner.h"

#include <algorithm>
#include <utility>

namespace muster::sim {

using domain::Cause;
using domain::RankExit;
using domain::RankPhase;
using domain::Target;

namespace {

RankExit exit_with(int code, Cause cause, std::string reason) {
  return {.exit_code = code, .signal = 0, .cause = cause, .reason = std::move(reason), .message = {}};
}
RankExit never_ran(Cause cause, std::string reason) {
  return {.exit_code = std::nullopt, .signal = 0, .cause = cause, .reason = std::move(reason), .message = {}};
}

}  // namespace

Runner::Runner(RunnerWorld& world, domain::NodeLaunch launch, const Program& program)
    : world_(world), launch_(std::move(launch)), program_(program) {}

void Runner::later(Millis delay, void (Runner::*step)()) {
  world_.after(delay, [weak = weak_from_this(), step] {
    if (const auto self = weak.lock(); self && self->acts()) (self.get()->*step)();
  });
}

void Runner::start() {
  world_.after(program_.start, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->acts()) return;
    if (self->program_.staging >= kWorthAReport) self->report(RankPhase::preparing, "staging");
    self->later(self->program_.staging, &Runner::stage_done);
    self->poll();
  });
}

void Runner::stage_done() {
  if (phase_ > RankPhase::preparing) return;  // it was stopped
  if (failing() && program_.staging_fails) return exited(never_ran(Cause::program, "no such bucket: data"));
  staged_ = true;
  report(RankPhase::ready);
}

void Runner::obey(const domain::Desired& desired) {
  if (desired.stop) terminate(desired);
  if (desired.target == Target::run && phase_ == RankPhase::ready && !desired.stop) {
    world_.command_started(launch_.id);
    report(RankPhase::running);
    if (program_.duration)
      later(fails_itself() ? *program_.duration / 2 : *program_.duration, &Runner::run_done);
    later(launch_.workload.max_runtime, &Runner::over_limit);
  }
  if (desired.target == Target::upload && phase_ == RankPhase::exited) {
    report(RankPhase::uploading);
    later(program_.upload, &Runner::upload_done);
  }
  if (desired.target == Target::exit && phase_ == RankPhase::uploaded && !program_.lingers) {
    leaving_ = true;
    report(RankPhase::finished);
  }
}

void Runner::terminate(const domain::Desired& desired) {
  if (phase_ < RankPhase::running) return exited(never_ran(desired.stop_cause, {}));
  if (phase_ != RankPhase::running || stopping_) return;
  stopping_ = true;
  const auto wait = program_.deaf ? desired.grace : std::min(desired.grace, Millis{100});
  world_.after(wait, [weak = weak_from_this(), cause = desired.stop_cause, deaf = program_.deaf] {
    const auto self = weak.lock();
    if (!self || !self->acts()) return;
    self->end_command(
        {.exit_code = std::nullopt, .signal = deaf ? 9 : 15, .cause = cause, .reason = {}, .message = {}});
  });
}

void Runner::run_done() {
  if (stopping_) return;
  end_command(exit_with(fails_itself() ? program_.exit_code : 0, Cause::program, {}));
}

void Runner::over_limit() {
  if (stopping_) return;
  end_command({.exit_code = std::nullopt, .signal = 15, .cause = Cause::limit, .reason = {}, .message = {}});
}

void Runner::end_command(RankExit exit) {
  if (phase_ != RankPhase::running) return;
  world_.command_ended(launch_.id, exit);
  exited(std::move(exit));
}

void Runner::exited(RankExit exit) {
  if (phase_ >= RankPhase::exited) return;
  exit_ = std::move(exit);
  report(RankPhase::exited);
}

void Runner::upload_done() {
  if (failing() && program_.upload_fails && exit_->reason.empty())
    exit_->reason = "upload of model.tar.gz refused";
  report(RankPhase::uploaded);
}

void Runner::report(RankPhase phase, std::string message) {
  phase_ = phase;
  outbox_.push_back({launch_.id, next_number_++, phase, std::move(message),
                     phase >= RankPhase::exited ? exit_ : std::nullopt});
  if (outbox_.size() == 1) send_next();
}

void Runner::send_next() {
  if (outbox_.empty()) return;
  const auto number = outbox_.front().number;
  const auto send = ++sends_;
  world_.send_report(launch_.id, outbox_.front(), [weak = weak_from_this(), number](const auto& reply) {
    if (const auto self = weak.lock(); self && self->acts()) self->reported(number, reply);
  });
  world_.after(kReportTimeout, [weak = weak_from_this(), send] {
    const auto self = weak.lock();
    if (self && self->acts() && self->sends_ == send) self->send_next();
  });
}

void Runner::reported(std::uint64_t number, const Result<control::Reply>& reply) {
  if (outbox_.empty() || outbox_.front().number != number) return;  // an answer that came twice
  if (!reply) {
    if (reply.error().code != ErrorCode::unavailable && reply.error().code != ErrorCode::resource_exhausted) {
      world_.protocol_violated(launch_.id, reply.error().message);
    }
    ++sends_;
    return later(kAway, &Runner::send_next);
  }
  if (reply->answer == domain::ReportAnswer::stale) return leave();
  if (reply->answer == domain::ReportAnswer::gap) {
    return world_.protocol_violated(launch_.id, "report " + std::to_string(number) + " was called a gap");
  }
  ++sends_;
  outbox_.pop_front();
  if (outbox_.empty() && leaving_) return leave();
  send_next();
}

void Runner::poll() {
  if (!acts() || leaving_) return;
  const auto number = ++polls_;
  world_.send_poll(launch_.id, version_, kPollWait, [weak = weak_from_this(), number](const auto& answer) {
    if (const auto self = weak.lock(); self && self->acts()) self->polled(number, answer);
  });
  world_.after(kPollTimeout, [weak = weak_from_this(), number] {
    const auto self = weak.lock();
    if (self && self->acts() && self->polls_ == number) self->poll();
  });
}

void Runner::polled(std::uint64_t number, const Result<std::optional<domain::Desired>>& answer) {
  if (number != polls_) return;  // of a poll that was given up, or an answer that came twice
  if (!answer) {
    ++polls_;
    return later(kAway, &Runner::poll);
  }
  if (!*answer) return leave();
  if ((*answer)->version > version_) {
    version_ = (*answer)->version;
    obey(**answer);
  }
  poll();
}

void Runner::leave() {
  alive_ = false;
  world_.process_ended(launch_.id);
}

}  // namespace muster::sim
