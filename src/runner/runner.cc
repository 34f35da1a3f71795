#include "runner/runner.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "base/assert.h"
#include "base/file.h"
#include "base/text.h"
#include "runner/core/core.h"
#include "runner/launch/surroundings.h"
#include "runner/report/reporter.h"
#include "runner/report/shipper.h"
#include "runner/supervise/command.h"
#include "runner/supervise/pump.h"
#include "runner/transfer/tree.h"
#include "runner/work.h"

namespace muster::runner {
namespace {

constexpr Millis kScanEvery{2'000};
constexpr Millis kPipesAfterEnd{2'000};  // for what a killed process had still printed
constexpr Millis kDeathAfterKill{2'000};
constexpr std::size_t kMessageFileBytes = 4 * domain::kReasonMax;

// An object store that cannot be used: every call says why.
class NoObjects final : public Objects {
 public:
  explicit NoObjects(Error why) : why_(std::move(why)) {}
  Result<std::vector<ObjectInfo>> list(const S3Location&) override { return tl::unexpected(why_); }
  Result<void> download(const std::string&, const std::vector<Download>&, const std::string&,
                        std::stop_token) override {
    return tl::unexpected(why_);
  }
  Result<void> upload(const std::string&, const S3Location&, std::stop_token) override {
    return tl::unexpected(why_);
  }
  Result<void> remove(const S3Location&) override { return tl::unexpected(why_); }

 private:
  Error why_;
};

struct Launch {
  domain::NodeLaunch node;
  std::string token;
};

Result<Launch> read_launch(const std::string& folder) {
  MUSTER_TRY(const auto text, read_file(folder + "/launch.json"));
  MUSTER_TRY(auto node, wire::decode_node_launch(text));
  MUSTER_TRY(const auto token, read_file(folder + "/token"));
  return Launch{std::move(node), std::string(trim(token))};
}

sigset_t handled_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGCHLD}) ::sigaddset(&set, number);
  return set;
}

class Shell {
 public:
  Shell(Context context, Launch launch);
  Result<int> run();

 private:
  Result<void> open();
  void post(core::Input input);  // any thread
  void lost(const Error& error);
  void feed(const core::Input& input);
  Result<void> wait();  // for events, signals, timers
  void on_signals();
  void reap();
  void command_ended(int status);
  void log(std::string_view line);
  void set_timers();
  void close();

  void act(const core::action::Stage&);
  void act(const core::action::CancelTransfers&) { transfer_stop_.request_stop(); }
  void act(const core::action::Start&);
  void act(const core::action::Signal& action);
  void act(const core::action::Upload&);
  void act(const core::action::Report& action) { reporter_->send(action.report); }
  void act(const core::action::Log& action) { log(action.text); }
  void act(const core::action::DeliverLogs&) { spool_->close(); }
  void act(const core::action::DeliverReports&) {
    reporter_->when_delivered([this] { post(core::input::ReportsDelivered{}); });
  }
  void act(const core::action::SetTimer& action) { timers_[action.timer] = boot_time() + action.after; }
  void act(const core::action::ClearTimer& action) { timers_.erase(action.timer); }
  void act(const core::action::Exit& action) { exit_code_ = action.code; }

  const Context context_;
  const domain::NodeLaunch launch_;
  const std::string token_;
  const SystemClock clock_;
  Patience patience_;
  core::Core core_;

  UniqueFd signals_;
  UniqueFd wake_;
  UniqueFd timer_;
  std::map<core::Timer, Millis> timers_;  // on CLOCK_BOOTTIME
  std::mutex mutex_;
  std::deque<core::Input> events_;
  std::optional<int> exit_code_;

  std::unique_ptr<ControlLink> link_;
  std::unique_ptr<LogSpool> spool_;
  std::unique_ptr<CredentialsCache> credentials_;
  std::unique_ptr<CredentialsServer> credentials_server_;
  std::unique_ptr<Objects> objects_;
  std::unique_ptr<Work> work_;
  pid_t command_ = 0;
  std::unique_ptr<OutputPump> pump_;

  // Threads, in the order in which they end last: each uses what stands above.
  std::unique_ptr<LogShipper> shipper_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Poller> poller_;
  std::stop_source transfer_stop_;
  std::jthread transfer_;
  std::jthread scanner_;
};

Shell::Shell(Context context, Launch launch)
    : context_(std::move(context)),
      launch_(std::move(launch.node)),
      token_(std::move(launch.token)),
      patience_(context_.patience),
      core_({.launch = launch_.id,
             .max_runtime = launch_.workload.max_runtime,
             .grace = launch_.workload.grace}) {}

Result<void> Shell::open() {
  const auto set = handled_signals();
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return fail_errno("block signals");
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  timer_ = UniqueFd(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!signals_ || !wake_ || !timer_) return fail_errno("signalfd, eventfd, timerfd");
  MUSTER_CHECK(become_supervisor());
  MUSTER_CHECK(make_directories(context_.folder + "/scratch", 0700));
  MUSTER_TRY(spool_, LogSpool::open(context_.folder + "/spool"));
  MUSTER_TRY(link_, connect(launch_.endpoint_url, launch_.id, token_));
  credentials_ = std::make_unique<CredentialsCache>(*link_, clock_);
  if (!launch_.credentials_uri.empty()) {
    MUSTER_TRY(credentials_server_, CredentialsServer::start(launch_.credentials_uri, *credentials_));
  }
  for (const auto line : split(launch_.notice, '\n')) {
    if (!line.empty()) log("muster: " + std::string(line));
  }
  shipper_ = std::make_unique<LogShipper>(*spool_, *link_, patience_, [this](Result<void> done) {
    const bool over =
        !done && (done.error().code == ErrorCode::cancelled || done.error().code == ErrorCode::timeout);
    if (over) return lost(done.error());
    post(core::input::LogsDelivered{done ? "" : "the log is not complete: " + done.error().message});
  });
  const auto gone = [this](const Error& error) { lost(error); };
  reporter_ = std::make_unique<Reporter>(context_.folder + "/spool/reports", *link_, patience_, gone);
  poller_ = std::make_unique<Poller>(
      *link_, patience_, [this](const domain::Desired& desired) { post(core::input::Desire{desired}); },
      gone);
  return {};
}

void Shell::lost(const Error& error) {
  if (error.code == ErrorCode::cancelled) return post(core::input::Stale{});
  post(core::input::GaveUp{error.message});
}

void Shell::post(core::Input input) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(input));
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto count = ::write(wake_.get(), &one, sizeof one);
}

void Shell::log(std::string_view line) {
  spool_->append(clock_.now(), line.substr(0, kLineBytesMax));
  spool_->flush();
}

void Shell::feed(const core::Input& input) {
  for (const auto& action : core_.handle(input)) {
    std::visit([this](const auto& value) { act(value); }, action);
  }
}

Result<int> Shell::run() {
  MUSTER_CHECK(open());
  feed(core::input::Begin{});
  while (!exit_code_) {
    set_timers();
    MUSTER_CHECK(wait());
    std::deque<core::Input> events;
    {
      const std::lock_guard lock(mutex_);
      events.swap(events_);
    }
    for (const auto& event : events) feed(event);
    const auto now = boot_time();
    for (auto it = timers_.begin(); it != timers_.end();) {
      if (it->second > now) {
        ++it;
        continue;
      }
      const auto timer = it->first;
      timers_.erase(it);
      feed(core::input::TimerFired{timer});
      it = timers_.begin();
    }
  }
  close();
  return *exit_code_;
}

void Shell::set_timers() {
  itimerspec when{};
  if (!timers_.empty()) {
    auto first = timers_.begin()->second;
    for (const auto& [timer, at] : timers_) first = std::min(first, at);
    when.it_value.tv_sec = first.count() / 1000;
    when.it_value.tv_nsec = first.count() % 1000 * 1'000'000 + 1;  // 0 would switch it off
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

Result<void> Shell::wait() {
  std::array<pollfd, 3> fds{
      {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0}}};
  if (::poll(fds.data(), fds.size(), -1) < 0) {
    if (errno == EINTR) return {};
    return fail_errno("poll");
  }
  std::uint64_t count = 0;
  [[maybe_unused]] auto got = ::read(wake_.get(), &count, sizeof count);
  got = ::read(timer_.get(), &count, sizeof count);
  if (fds[0].revents != 0) on_signals();
  return {};
}

void Shell::on_signals() {
  signalfd_siginfo info{};
  bool child = false;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    child |= info.ssi_signo == SIGCHLD;
    if (info.ssi_signo != SIGCHLD) feed(core::input::Terminate{});
  }
  if (child) reap();
}

// Every child, also orphans that this process inherited.
void Shell::reap() {
  int status = 0;
  for (;;) {
    const auto pid = ::waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) return;
    if (pid == command_) command_ended(status);
  }
}

void Shell::command_ended(int status) {
  command_ = 0;
  kill_everything();        // what it left behind holds the pipes and the node
  scanner_.request_stop();  // joined before the upload: a copy in flight may take its time
  pump_->finish(kPipesAfterEnd);
  core::input::Exited exited;
  if (WIFEXITED(status)) exited.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) exited.signal = WTERMSIG(status);
  exited.tail = pump_->tail();
  pump_.reset();
  if (const auto output = Tree::open(context_.opt_ml + "/output")) {
    exited.failure_file = read_small(*output, "failure", kMessageFileBytes);
    exited.message_file = read_small(*output, "message", kMessageFileBytes);
  }
  feed(exited);
}

void Shell::act(const core::action::Stage&) {
  if (context_.make_objects) {
    auto made = context_.make_objects(launch_.endpoint_url, launch_.workload.region, *credentials_);
    if (made) objects_ = *std::move(made);
    if (!made) objects_ = std::make_unique<NoObjects>(made.error());
  } else {
    objects_ = std::make_unique<NoObjects>(Error{ErrorCode::unsupported, "this runner has no object store"});
  }
  WorkContext work;
  work.launch = launch_;
  work.opt_ml = context_.opt_ml;
  work.scratch = context_.folder + "/scratch";
  work.names_resolve = context_.names_resolve;
  work.give = context_.give;
  work.log = [this](const std::string& line) { log(line); };
  work_ = std::make_unique<Work>(std::move(work), *objects_);
  transfer_ = std::jthread([this, stop = transfer_stop_.get_token()] {
    auto done = work_->prepare(stop);
    post(done ? core::input::Staged{*done, {}} : core::input::Staged{"", done.error()});
  });
}

void Shell::act(const core::action::Start&) {
  NodeFacts node;
  node.bin_dir = context_.bin_dir;
  node.opt_ml = context_.opt_ml;
  node.home = context_.home;
  node.user = context_.user;
  node.names_resolve = context_.names_resolve;
  if (credentials_server_) {
    node.credentials_uri = credentials_server_->uri();
    node.credentials_token = credentials_server_->token();
  }
  CommandSpec spec;
  spec.words = command_line(launch_, node);
  spec.environment = environment(launch_, node);
  spec.folder = context_.opt_ml;
  spec.become = context_.become;
  auto command = start(spec);
  if (!command) return feed(core::input::NotStarted{command.error().message});
  command_ = command->pid;
  pump_ = std::make_unique<OutputPump>(
      *command, [this](std::string_view line) { spool_->append(clock_.now(), line); },
      [this] { spool_->flush(); });
  if (work_->has_scans()) {
    scanner_ = std::jthread([this](std::stop_token stop) {
      while (sleep_unless(stop, kScanEvery)) work_->scan(stop);
    });
  }
  feed(core::input::Started{});
}

void Shell::act(const core::action::Signal& action) {
  if (action.number == SIGKILL) {
    kill_everything();
  } else if (command_ != 0) {
    signal_group(command_, action.number);
  }
}

void Shell::act(const core::action::Upload&) {
  if (transfer_.joinable()) transfer_.join();  // staging has ended long ago
  transfer_stop_ = std::stop_source();
  transfer_ = std::jthread([this, stop = transfer_stop_.get_token()] {
    if (scanner_.joinable()) scanner_.join();
    auto done = work_->finish(stop);
    post(done ? core::input::Uploaded{*done, {}} : core::input::Uploaded{"", done.error()});
  });
}

// Threads end before what they use: exchanges and transfers in flight are cut off.
void Shell::close() {
  kill_everything();
  const auto until = boot_time() + kDeathAfterKill;
  while (::waitpid(-1, nullptr, WNOHANG) >= 0 && boot_time() < until) ::usleep(1'000);
  transfer_stop_.request_stop();
  scanner_.request_stop();
  link_->cancel();
  if (objects_) objects_->cancel();
  poller_.reset();
  reporter_.reset();
  shipper_.reset();
  if (transfer_.joinable()) transfer_.join();
  if (scanner_.joinable()) scanner_.join();
  pump_.reset();
  spool_->flush();
}

// The whole spool in `folder`, to the last line.
Result<void> ship_spool(const std::string& folder, ControlLink& link, Patience& patience) {
  MUSTER_TRY(const auto spool, LogSpool::open(folder));
  spool->close();
  std::promise<Result<void>> done;
  auto shipped = done.get_future();
  LogShipper shipper(*spool, link, patience, [&](Result<void> result) { done.set_value(std::move(result)); });
  return shipped.get();
}

Result<void> ship_reports(const std::string& file, ControlLink& link, Patience& patience) {
  MUSTER_TRY(const auto reports, read_reports(file));
  for (const auto& report : reports) {
    MUSTER_TRY(const auto answer,
               patience.repeat<domain::ReportAnswer>({}, [&] { return link.report(report); }));
    if (answer == domain::ReportAnswer::stale) return fail(ErrorCode::cancelled, "the launch is over");
  }
  return {};
}

// Refused for good, or no longer readable: another try would find the same.
bool is_final(const Error& error) {
  return error.code == ErrorCode::failed_precondition || error.code == ErrorCode::corrupt;
}

}  // namespace

Result<int> run(Context context) {
  MUSTER_TRY(auto launch, read_launch(context.folder));
  Shell shell(std::move(context), std::move(launch));
  return shell.run();
}

Result<std::string> drain(const std::string& folder, Patience::Options options) {
  MUSTER_TRY(const auto launch, read_launch(folder));
  MUSTER_TRY(auto link, connect(launch.node.endpoint_url, launch.node.id, launch.token));
  Patience patience(options);
  const auto over = [](const auto& done) { return !done && done.error().code == ErrorCode::cancelled; };
  std::vector<std::string> given_up;
  const auto logs = ship_spool(folder + "/spool", *link, patience);
  if (over(logs)) return std::string();
  if (!logs && !is_final(logs.error())) return tl::unexpected(logs.error());
  if (!logs) given_up.push_back("the log is not complete: " + logs.error().message);
  const auto reports = ship_reports(folder + "/spool/reports", *link, patience);
  if (!reports && !over(reports) && !is_final(reports.error())) return tl::unexpected(reports.error());
  if (!reports && !over(reports)) given_up.push_back("the reports: " + reports.error().message);
  return join(given_up, "; ");
}

}  // namespace muster::runner
