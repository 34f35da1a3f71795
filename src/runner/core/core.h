// The runner as a state machine: inputs from the outside in, actions for the shell out. Pure: no clock, no
// I/O.
//
//   staging -> ready -> starting -> running -> exited -> uploading -> uploaded -> closing -> done
//
// It follows the desired state (full, not deltas) that the control plane answers, and numbers the reports.
// A stop, a stale launch (410) or the shell's own SIGTERM may come in any step. Owned by the runner's one
// main thread. docs/formats/runner-protocol.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "domain/launch.h"
#include "domain/report.h"

namespace muster::runner::core {

enum class Step { created, staging, ready, starting, running, exited, uploading, uploaded, closing, done };
std::string_view to_string(Step step);

// Why a part of the work could not be done, and whose fault it is.
struct Failure {
  domain::Cause cause = domain::Cause::program;
  std::string reason;
};

enum class Timer {
  preparing,  // staging takes long enough to be worth a report
  kill,       // grace after SIGTERM is over
  limit,      // maximum run time is over
  leave,      // the runner was told to go away and has waited long enough
};
std::string_view to_string(Timer timer);

namespace input {
struct Begin {};
struct Desire {
  domain::Desired desired;
};
struct Staged {
  std::string message;
  std::optional<Failure> failure;
};
struct Started {};
struct NotStarted {
  std::string reason;
};
// The command has ended, its output is complete and nothing of it is alive.
struct Exited {
  std::optional<int> exit_code;  // nullopt: killed by `signal`
  int signal = 0;
  std::string failure_file;  // content of /opt/ml/output/failure, "" without one
  std::string tail;          // its last lines of stderr, joined
  std::string message_file;  // content of /opt/ml/output/message
};
struct Uploaded {
  std::string message;
  std::optional<Failure> failure;
};
// Nothing more of the log will be sent. After DeliverLogs: every line has been acknowledged. In any step,
// with an error: the rest of the log can never be delivered.
struct LogsDelivered {
  std::string error;
};
struct ReportsDelivered {};  // every report so far has been acknowledged
struct TimerFired {
  Timer timer = Timer::kill;
};
struct Stale {};  // 410: this launch is over
struct GaveUp {   // the control plane was away for too long
  std::string reason;
};
struct Terminate {};  // SIGTERM to the runner itself
}  // namespace input

using Input = std::variant<input::Begin, input::Desire, input::Staged, input::Started, input::NotStarted,
                           input::Exited, input::Uploaded, input::LogsDelivered, input::ReportsDelivered,
                           input::TimerFired, input::Stale, input::GaveUp, input::Terminate>;

namespace action {
struct Stage {};
struct CancelTransfers {};  // staging or upload: answer soon; its result is ignored
struct Start {};
struct Signal {
  int number = 15;  // SIGTERM to the command's process group, SIGKILL to everything in the node
};
struct Upload {};
struct Report {
  domain::RankReport report;
};
struct Log {
  std::string text;  // a line of the runner's own in the job's log
};
struct DeliverLogs {};  // no more lines come: answer LogsDelivered when all are acknowledged
struct DeliverReports {};
struct SetTimer {
  Timer timer = Timer::kill;
  Millis after{0};
};
struct ClearTimer {
  Timer timer = Timer::kill;
};
struct Exit {
  int code = 0;
};
}  // namespace action

using Action = std::variant<action::Stage, action::CancelTransfers, action::Start, action::Signal,
                            action::Upload, action::Report, action::Log, action::DeliverLogs,
                            action::DeliverReports, action::SetTimer, action::ClearTimer, action::Exit>;

// Exit codes of the runner program.
inline constexpr int kExitDone = 0;
inline constexpr int kExitStale = 3;
inline constexpr int kExitGaveUp = 4;
inline constexpr int kExitTerminated = 5;

struct Config {
  domain::LaunchId launch;
  Millis max_runtime{86'400'000};
  Millis grace{120'000};
  Millis leave{10'000};   // for the last log lines after Terminate
  Millis preparing{100};  // staging that is over by then goes without a report of its own
};

// The reason of an end by itself: the failure file, else the exit code or signal with the last lines. At most
// domain::kReasonMax characters of UTF-8; empty for exit code 0.
std::string exit_reason(const input::Exited& exited);

class Core {
 public:
  explicit Core(Config config) : config_(config) {}
  [[nodiscard]] std::vector<Action> handle(const Input& input);
  Step step() const { return step_; }

 private:
  void on(const input::Begin&);
  void on(const input::Desire&);
  void on(const input::Staged&);
  void on(const input::Started&);
  void on(const input::NotStarted&);
  void on(const input::Exited&);
  void on(const input::Uploaded&);
  void on(const input::LogsDelivered&);
  void on(const input::ReportsDelivered&);
  void on(const input::TimerFired&);
  void on(const input::Stale&);
  void on(const input::GaveUp&);
  void on(const input::Terminate&);

  void pursue();  // does what the desired state and the step call for
  void stop_command(domain::Cause cause, Millis grace);
  void end_without_command(domain::Cause cause, std::string reason);
  void close();
  void farewell();
  void abandon(int code);
  void report(domain::RankPhase phase, std::string message);

  Config config_;
  Step step_ = Step::created;
  domain::Desired desired_;
  std::uint64_t reports_ = 0;
  std::optional<domain::RankExit> exit_;
  std::optional<domain::Cause> stopping_;  // SIGTERM was sent, and why
  Millis stop_grace_{0};
  std::optional<std::string> logs_error_;  // the log has ended, "" is well
  bool ran_ = false;
  bool terminate_ = false;
  bool reported_end_ = false;  // the final report is made
  std::vector<Action> actions_;
};

}  // namespace muster::runner::core
