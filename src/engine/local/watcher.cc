#include "engine/local/watcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/assert.h"
#include "engine/local/spawn.h"
#include "wire/runner/messages.h"

namespace muster::engine::local {

namespace {

constexpr Millis kLookAgain{2};          // while a dead runner's node is taken apart
constexpr Millis kTakeApartMax{10'000};  // then it is counted as gone all the same

int signal_process(const UniqueFd& process, int signal) {
  if (!process) return 0;
  const auto sent = ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
  return sent == 0 || errno == ESRCH ? 0 : errno;
}

// How a child ended, and reaps it.
std::string reap(const UniqueFd& process) {
  siginfo_t info{};
  if (::waitid(P_PIDFD, static_cast<id_t>(process.get()), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
    return {};
  return (info.si_code == CLD_EXITED ? "exit " : "signal ") + std::to_string(info.si_status);
}

// Of a launch file that cannot be read: none.
domain::NodeName read_node(const std::string& folder) {
  const auto text = read_file(folder + "/launch.json");
  if (!text) return {};
  const auto launch = wire::decode_node_launch(*text);
  return launch ? launch->node : domain::NodeName();
}

std::string sentence(const std::string& end) {
  if (end.starts_with("exit ")) return "runner ended with code " + end.substr(5);
  if (end.starts_with("signal ")) return "runner killed by " + end;
  return "runner is gone";
}

}  // namespace

Watcher::Watcher(Setup setup) : setup_(std::move(setup)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MUSTER_ASSERT(wake_);
}

Watcher::~Watcher() {
  if (thread_.joinable()) {
    thread_.request_stop();
    wake();
    thread_.join();
  }
}

std::string Watcher::folder(const domain::LaunchId& id) const {
  return setup_.run_directory + "/" + to_string(id);
}

void Watcher::wake() const {
  const std::uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) MUSTER_ASSERT(errno == EAGAIN);  // full: it is awake
}

// Whether `process` lives; then it is the entry's.
bool Watcher::find(const ProcessRef& process, Entry& entry) {
  auto found = open_process(process);
  if (!found) return false;
  entry.process = *std::move(found);
  entry.seen = true;
  return true;
}

void Watcher::adopt() {
  for (const auto& id : list_launches(setup_.run_directory)) {
    const auto path = folder(id);
    const auto process = read_pid(path);
    const bool alive = is_occupied(path);
    if (!alive && !process) {  // prepared and never started: it will be launched again
      static_cast<void>(remove_tree(path));
      continue;
    }
    Entry entry;
    entry.node = read_node(path);
    entry.end = read_exit(path);
    entry.shipped = entry.end == "exit 0" || ::access((path + "/drained").c_str(), F_OK) == 0;
    if (!alive && entry.shipped) {
      entry.state = State::ended;
      entry.announced = true;
    } else if (alive && process && find(*process, entry)) {
      entry.state = State::running;
    } else {
      entry.state = State::ending;  // until its process is found
      entry.since = boot_time();
      entry.due = entry.since;
    }
    const std::lock_guard lock(mutex_);
    entries_.insert_or_assign(id, std::move(entry));
  }
}

void Watcher::start(std::function<void(const ports::NodeExit&)> handler) {
  MUSTER_ASSERT(!thread_.joinable());
  handler_ = std::move(handler);
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

void Watcher::add(const domain::LaunchId& id, domain::NodeName node, UniqueFd process) {
  {
    const std::lock_guard lock(mutex_);
    Entry entry;
    entry.node = std::move(node);
    entry.process = std::move(process);
    entry.child = true;
    entry.seen = true;
    entries_.insert_or_assign(id, std::move(entry));
  }
  wake();
}

bool Watcher::knows(const domain::LaunchId& id) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(id);
}

Result<void> Watcher::stop(const domain::LaunchId& id, Millis grace) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return {};
    auto& entry = found->second;
    if (entry.state == State::ending && !entry.seen) {
      return fail(ErrorCode::unavailable,
                  "the runner of " + to_string(id) + " is just being found: try again");
    }
    if (entry.state != State::running) return {};
    const int signal = grace <= Millis{0} ? SIGKILL : SIGTERM;
    if (const int refused = signal_process(entry.process, signal); refused != 0) {
      return fail_errno("cannot signal the runner of " + to_string(id), refused);
    }
    const auto due = boot_time() + std::max(grace, Millis{0});
    entry.due = entry.due ? std::min(*entry.due, due) : due;
  }
  wake();
  return {};
}

std::vector<domain::Observation> Watcher::observe() const {
  const std::lock_guard lock(mutex_);
  std::vector<domain::Observation> out;
  for (const auto& [id, entry] : entries_) {
    out.push_back({.id = id, .node = entry.node, .alive = entry.state != State::ended});
  }
  return out;
}

Result<void> Watcher::settle(const domain::LaunchId& id, Millis wait_max) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return {};
  if (found->second.state == State::ended && !found->second.shipped) {
    found->second.state = State::ending;
    found->second.since = boot_time();
    found->second.due = found->second.since;
    wake();
  }
  const auto ended = [&] {
    const auto now = entries_.find(id);
    return now == entries_.end() || now->second.state == State::ended;
  };
  if (!changed_.wait_for(lock, wait_max, ended)) {
    return fail(ErrorCode::unavailable, to_string(id) + " is still ending");
  }
  const auto now = entries_.find(id);
  if (now == entries_.end() || now->second.shipped) return {};
  return fail(ErrorCode::unavailable, "the logs and reports that " + to_string(id) +
                                          " left could not be shipped (" + now->second.note +
                                          "); they are kept in " + folder(id));
}

void Watcher::forget(const domain::LaunchId& id) {
  const std::lock_guard lock(mutex_);
  entries_.erase(id);
  changed_.notify_all();
}

void Watcher::loop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    std::vector<domain::LaunchId> ids{domain::LaunchId{}};
    std::optional<Millis> due;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, entry] : entries_) {
        if (entry.state == State::ended) continue;
        if (entry.due && (!due || *entry.due < *due)) due = entry.due;
        fds.push_back({.fd = entry.process ? entry.process.get() : -1, .events = POLLIN, .revents = 0});
        ids.push_back(id);
      }
    }
    const auto wait = due ? std::clamp<std::int64_t>((*due - boot_time()).count(), 0, 3'600'000) : -1;
    if (::poll(fds.data(), fds.size(), static_cast<int>(wait)) < 0 && errno != EINTR) MUSTER_ASSERT(false);
    std::uint64_t count = 0;
    if (::read(wake_.get(), &count, sizeof count) < 0) MUSTER_ASSERT(errno == EAGAIN);
    std::vector<ports::NodeExit> exits;
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 1; i < ids.size(); ++i) {
        const auto found = entries_.find(ids[i]);
        if (found != entries_.end()) step(ids[i], found->second, (fds[i].revents & (POLLIN | POLLHUP)) != 0);
      }
      exits.swap(exits_);
      changed_.notify_all();
    }
    for (const auto& exit : exits) handler_(exit);
  }
}

void Watcher::step(const domain::LaunchId& id, Entry& entry, bool gone) {
  if (gone && entry.process) {
    on_gone(id, entry);
  } else if (entry.due && *entry.due <= boot_time()) {
    on_due(id, entry);
  }
}

void Watcher::on_gone(const domain::LaunchId& id, Entry& entry) {
  const auto end = entry.child ? reap(entry.process) : std::string();
  entry.process.reset();
  entry.due.reset();
  if (entry.state == State::draining) {
    entry.shipped = end == "exit 0";
    if (!entry.shipped) entry.note = "muster-runner drain: " + end;
    if (entry.shipped) static_cast<void>(put_file(folder(id) + "/drained", "", 0600));
    finish(id, entry);
    return;
  }
  entry.state = State::ending;
  entry.since = boot_time();
  entry.end = end;
  look_again(id, entry);
}

void Watcher::on_due(const domain::LaunchId& id, Entry& entry) {
  entry.due.reset();
  if (entry.state == State::ending) {
    look_again(id, entry);
  } else {
    static_cast<void>(signal_process(entry.process, SIGKILL));  // a stop's grace, or a drain's time, is over
  }
}

// The runner's outer process is gone, or not known yet: what does its folder say?
void Watcher::look_again(const domain::LaunchId& id, Entry& entry) {
  const auto path = folder(id);
  if (is_occupied(path) && boot_time() - entry.since < kTakeApartMax) {
    const auto process = read_pid(path);
    if (process && find(*process, entry)) {
      entry.state = State::running;
      return;
    }
    entry.due = boot_time() + kLookAgain;
    return;
  }
  if (auto said = read_exit(path); !said.empty()) entry.end = std::move(said);
  entry.shipped = entry.shipped || entry.end == "exit 0";
  if (entry.shipped) {
    finish(id, entry);
  } else {
    begin_drain(id, entry);
  }
}

void Watcher::begin_drain(const domain::LaunchId& id, Entry& entry) {
  const auto path = folder(id);
  const auto start = [&]() -> Result<UniqueFd> {
    MUSTER_TRY(const auto lock, take_lock(path));
    MUSTER_TRY(const auto pid, spawn({.path = setup_.runner_program,
                                      .arguments = {"drain", path},
                                      .log_path = path + "/runner.log",
                                      .lock_fd = lock.get()}));
    MUSTER_TRY(const auto process, process_ref(pid));
    return open_process(process);  // which writes `pid` itself: musterd may die at any point
  };
  auto process = start();
  if (!process) {
    entry.note = process.error().message;
    finish(id, entry);
    return;
  }
  entry.state = State::draining;
  entry.process = *std::move(process);
  entry.child = true;
  entry.due = boot_time() + setup_.drain_max;
}

void Watcher::finish(const domain::LaunchId& id, Entry& entry) {
  entry.state = State::ended;
  entry.due.reset();
  if (entry.announced) return;
  entry.announced = true;
  auto message = sentence(entry.end);
  if (!entry.shipped) message += "; its last logs and reports are not shipped (" + entry.note + ")";
  exits_.push_back({.id = id, .message = std::move(message)});
}

}  // namespace muster::engine::local
