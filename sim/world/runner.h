// A runner as the control plane sees one: it stages, waits at the barrier, runs a program, uploads and
// leaves, by the protocol of domain/report.h. One process of the simulated engine.
//
// Reports go out one by one, each again until it is acknowledged; commands come by long poll. It trusts
// nothing of the network: answers may be lost, late or doubled. One thread, that of its world.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/time.h"
#include "control/control.h"
#include "domain/launch.h"
#include "domain/report.h"
#include "service/service.h"

namespace muster::sim {

// What the ranks of a job do.
struct Program {
  Millis start{200};  // process start to first report
  Millis staging{500};
  Millis upload{300};
  std::optional<Millis> duration;  // none: until told
  int failing_rank = -1;           // ends with exit_code in the middle of its duration
  int exit_code = 1;
  bool staging_fails = false;  // on the failing rank, instead
  bool upload_fails = false;   // on the failing rank, instead
  bool deaf = false;           // to SIGTERM
  bool lingers = false;        // its uploads done, it asks for orders and never takes its leave
};

// A job as a client asks for it. Names are unique in a world, whatever the kind.
struct JobPlan {
  std::string name;
  domain::JobKind kind = domain::JobKind::training;
  int nodes = 1;
  int retries = 0;
  Millis max_runtime{86'400'000};
  Millis grace{120'000};
  Program program;
};

// The world as a runner sees it.
class RunnerWorld {
 public:
  using Answer = std::function<void(Result<control::Reply>)>;
  virtual ~RunnerWorld() = default;
  virtual void after(Millis delay, std::function<void()> run) = 0;
  virtual void send_report(const domain::LaunchId& from, const domain::RankReport& report, Answer answer) = 0;
  virtual void send_poll(const domain::LaunchId& from, std::uint64_t after, Millis wait,
                         service::Service::DesiredDone answer) = 0;
  virtual void command_started(const domain::LaunchId& id) = 0;
  virtual void command_ended(const domain::LaunchId& id, const domain::RankExit& exit) = 0;
  virtual void protocol_violated(const domain::LaunchId& id, const std::string& what) = 0;
  virtual void process_ended(const domain::LaunchId& id) = 0;
};

class Runner : public std::enable_shared_from_this<Runner> {
 public:
  Runner(RunnerWorld& world, domain::NodeLaunch launch, const Program& program);
  void start();
  void kill() { alive_ = false; }  // SIGKILL: no last word
  void hang() { hangs_ = true; }   // SIGSTOP: alive, and silent for good
  bool alive() const { return alive_; }
  domain::RankPhase phase() const { return phase_; }
  const domain::NodeLaunch& launch() const { return launch_; }
  // The command ends now, if it runs.
  void end_command(domain::RankExit exit);

 private:
  static constexpr Millis kPollWait{20'000};
  static constexpr Millis kPollTimeout{25'000};
  static constexpr Millis kReportTimeout{5'000};
  static constexpr Millis kAway{500};            // before asking again a control plane that is away
  static constexpr Millis kWorthAReport{1'000};  // staging that takes less is not reported by itself

  void later(Millis delay, void (Runner::*step)());
  void stage_done();
  void run_done();
  void over_limit();
  void report(domain::RankPhase phase, std::string message = {});
  void send_next();
  void reported(std::uint64_t number, const Result<control::Reply>& reply);
  void poll();
  void polled(std::uint64_t poll, const Result<std::optional<domain::Desired>>& answer);
  void obey(const domain::Desired& desired);
  void terminate(const domain::Desired& desired);
  void exited(domain::RankExit exit);
  void upload_done();
  void leave();
  bool acts() const { return alive_ && !hangs_; }
  bool fails_itself() const { return failing() && !program_.upload_fails && !program_.staging_fails; }
  bool failing() const { return program_.failing_rank == launch_.id.rank; }

  RunnerWorld& world_;
  domain::NodeLaunch launch_;
  Program program_;
  bool alive_ = true;
  bool hangs_ = false;
  bool staged_ = false;
  bool stopping_ = false;
  bool leaving_ = false;
  domain::RankPhase phase_ = domain::RankPhase::starting;
  std::optional<domain::RankExit> exit_;
  std::deque<domain::RankReport> outbox_;
  std::uint64_t next_number_ = 1;
  std::uint64_t version_ = 0;  // of the last word obeyed
  std::uint64_t polls_ = 0;
  std::uint64_t sends_ = 0;
};

}  // namespace muster::sim
