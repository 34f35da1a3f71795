#include "train/agent/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <set>

#include "base/file.h"
#include "train/agent/process.h"

namespace muster::train {
namespace {

constexpr std::size_t kLastLines = 20;
constexpr std::size_t kLineMax = 64 << 10;  // longer ones are cut in pieces

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

constexpr std::string_view kErrorStart = "muster-train: ";

// Bytes of "rank 12: " in front; 0 if the text does not begin so.
std::size_t rank_prefix(std::string_view text) {
  constexpr std::string_view kRank = "rank ";
  if (!text.starts_with(kRank)) return 0;
  const auto end = text.find_first_not_of("0123456789", kRank.size());
  if (end == kRank.size() || end == std::string_view::npos) return 0;
  return text.substr(end).starts_with(": ") ? end + 2 : 0;
}

// What has been shown on stderr. An error that all ranks have is said by each in the same words, but for its
// number: it is shown once.
class Shown {
 public:
  // Whether the line is an error that was shown before; remembers it.
  bool repeats(const std::string& line) {
    const std::string message = without_number(line);
    return message != line && !errors_.insert(message).second;
  }
  void add(const std::string& line) { last_ = without_number(line); }
  // Whether nothing was shown after the line.
  bool ends_with(const std::string& line) const { return last_ == without_number(line); }

 private:
  static std::string without_number(const std::string& line) {
    if (!line.starts_with(kErrorStart)) return line;
    const std::size_t prefix = rank_prefix(std::string_view(line).substr(kErrorStart.size()));
    return prefix == 0 ? line : line.substr(kErrorStart.size() + prefix);
  }
  std::set<std::string> errors_;
  std::string last_;
};

// Cuts one stream of a rank into lines, passes them on, and keeps the last ones.
class Stream {
 public:
  Stream(UniqueFd from, int to, int rank, Shown& shown)
      : from_(std::move(from)), to_(to), rank_(rank), shown_(shown) {
    fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  }
  int fd() const { return from_.get(); }  // -1 once closed
  const std::deque<std::string>& last() const { return last_; }

  // Reads what is there. At the end of the stream closes it.
  void pump() {
    char buffer[16 << 10];
    while (from_) {
      const ssize_t got = read(from_.get(), buffer, sizeof buffer);
      if (got > 0) {
        take({buffer, static_cast<std::size_t>(got)});
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        if (!partial_.empty()) pass();
        from_.reset();
      } else if (errno == EAGAIN) {
        return;
      }
    }
  }

 private:
  void take(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto end = bytes.find('\n');
      partial_ += bytes.substr(0, end);
      bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
      if (end != std::string_view::npos || partial_.size() >= kLineMax) pass();
    }
  }
  void pass() {
    const bool on_stderr = to_ == STDERR_FILENO;
    if (!on_stderr || !shown_.repeats(partial_)) {
      // A reader of ours that has gone away is no reason to stop the training.
      (void)write_all(to_, (rank_ == 0 ? "" : "[rank " + std::to_string(rank_) + "] ") + partial_ + "\n");
      if (on_stderr) shown_.add(partial_);
    }
    last_.push_back(std::move(partial_));
    if (last_.size() > kLastLines) last_.pop_front();
    partial_.clear();
  }

  UniqueFd from_;
  int to_;
  int rank_;
  Shown& shown_;
  std::string partial_;
  std::deque<std::string> last_;
};

struct Rank {
  int number = 0;  // global
  Child child;
  Stream out, err;
  std::optional<Ended> ended;
  bool killed = false;  // by the agent
  bool failed() const { return ended && ended->code != kExitDone && ended->code != kExitStopped; }
};

class Agent {
 public:
  explicit Agent(const AgentOptions& options) : options_(options) {}

  Result<AgentEnd> run() {
    const sigset_t signals = stop_signals();
    signals_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) return fail_errno("signalfd");
    if (auto started = start(); !started) {
      kill_all(SIGKILL);
      reap_all();
      return tl::unexpected(started.error());
    }
    while (anyone_left()) {
      wait_for_something();
      read_signals();
      for (Rank& rank : ranks_) {
        rank.out.pump();
        rank.err.pump();
      }
      reap();
      if (kill_at_ && boot_time() >= *kill_at_) {
        kill_because(failing_ ? "" : format_duration(options_.stop_grace) + " after it was asked to stop");
        kill_at_.reset();
      }
    }
    return end();
  }

 private:
  Result<void> start() {
    const NodePlace& place = options_.place;
    for (int local = 0; local < place.ranks; ++local) {
      const RankPlace rank{.rank = place.node * place.ranks + local,
                           .world = place.nodes * place.ranks,
                           .local_rank = local,
                           .local_world = place.ranks,
                           .node = place.node,
                           .store_host = options_.store_host,
                           .store_port = options_.store_port,
                           .address = place.address};
      std::vector<std::string> argv = options_.command;
      for (auto& flag : rank_flags(rank)) argv.push_back(std::move(flag));
      MUSTER_TRY(Child child, spawn(argv));
      Stream out(std::move(child.out), rank.rank == 0 ? STDOUT_FILENO : STDERR_FILENO, rank.rank, shown_);
      Stream err(std::move(child.err), STDERR_FILENO, rank.rank, shown_);
      ranks_.push_back({rank.rank, std::move(child), std::move(out), std::move(err), {}});
    }
    return {};
  }

  bool anyone_left() const {
    for (const Rank& rank : ranks_) {
      if (!rank.ended) return true;
    }
    return false;
  }

  void wait_for_something() {
    std::vector<pollfd> fds = {{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
    for (const Rank& rank : ranks_) {
      for (int fd : {rank.ended ? -1 : rank.child.pidfd.get(), rank.out.fd(), rank.err.fd()}) {
        if (fd >= 0) fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      }
    }
    const auto left = kill_at_ ? std::max<std::int64_t>(0, (*kill_at_ - boot_time()).count()) : 60'000;
    poll(fds.data(), fds.size(), static_cast<int>(left));
  }

  void read_signals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (!stopped_at_) {
        stop();
        continue;
      }
      const Millis since = boot_time() - *stopped_at_;
      if (since < options_.same_stop) continue;
      kill_because("by a signal " + format_duration(since) + " after the first");
    }
  }

  // Asks the ranks to save and stop.
  void stop() {
    stopped_at_ = boot_time();
    kill_all(SIGTERM);
    if (!failing_) kill_at_ = *stopped_at_ + options_.stop_grace;
  }

  void reap() {
    for (Rank& rank : ranks_) {
      if (rank.ended) continue;
      pollfd fd{.fd = rank.child.pidfd.get(), .events = POLLIN, .revents = 0};
      if (poll(&fd, 1, 0) != 1) continue;
      rank.ended = wait_child(rank.child);
      rank.out.pump();
      rank.err.pump();
      order_.push_back(&rank);
      if (rank.ended->signal == SIGTERM && !stopped_at_) {
        asked_ = &rank;
        stop();
      }
      if (rank.failed() && !failing_) {
        failing_ = true;
        kill_at_ = boot_time() + options_.failure_grace;
      }
    }
  }

  void kill_all(int signal) {
    for (Rank& rank : ranks_) {
      if (rank.ended) continue;
      kill(rank.child.pid, signal);
      rank.killed = rank.killed || signal == SIGKILL;
    }
  }

  // why: as of why_killed_.
  void kill_because(const std::string& why) {
    if (why_killed_.empty()) why_killed_ = why;
    kill_all(SIGKILL);
  }

  void reap_all() {
    for (Rank& rank : ranks_) {
      if (!rank.ended) rank.ended = wait_child(rank.child);
    }
  }

  // Ranks wait for each other when they have saved: where one has ended well, the others had only to leave.
  bool all_saved() const {
    return std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.ended && !rank.failed(); });
  }

  // What the end of a rank tells about why the run ended, the most telling first.
  enum class Cause {
    own,      // it failed by itself
    stop,     // SIGTERM, before it had anything to save: asked for
    lost,     // it lost a peer
    killed,   // by the agent, before all had saved
    nothing,  // it is done, or saved
  };
  Cause cause(const Rank& rank) const {
    if (!rank.failed()) return Cause::nothing;
    if (rank.killed && rank.ended->signal == SIGKILL) return all_saved() ? Cause::nothing : Cause::killed;
    if (stopped_at_ && rank.ended->signal == SIGTERM) return Cause::stop;
    return rank.ended->code == kExitLostPeer ? Cause::lost : Cause::own;
  }

  // Of the ranks that tell most, the first to end. nullptr: all is well.
  const Rank* culprit() const {
    const Rank* first = nullptr;
    for (const Rank* rank : order_) {
      if (cause(*rank) < (first == nullptr ? Cause::nothing : cause(*first))) first = rank;
    }
    return first;
  }

  AgentEnd end() const {
    const Rank* rank = culprit();
    if (rank != nullptr && cause(*rank) == Cause::stop) {
      const std::string who = asked_ ? "rank " + std::to_string(asked_->number) + " was " : "";
      (void)write_all(STDERR_FILENO, "stopped without saving: " + who + "asked to stop while starting\n");
      return {.code = kExitStopped};
    }
    if (rank == nullptr) {
      for (const Rank& other : ranks_) {
        if (other.ended->code == kExitStopped) return {.code = kExitStopped};
      }
      return {};
    }
    std::string what = "rank " + std::to_string(rank->number) + " ";
    if (cause(*rank) == Cause::killed && !why_killed_.empty()) {
      what += "was killed " + why_killed_ + "; nothing since the last checkpoint is kept";
    } else {
      what += rank->ended->describe();
    }
    const auto& lines = rank->err.last().empty() ? rank->out.last() : rank->err.last();
    std::string report = what;
    if (!lines.empty() && !shown_.ends_with(lines.back())) {  // else they stand right above
      report += "; its last lines:";
      for (const std::string& line : lines) report += "\n  " + line;
    }
    report += "\n";
    (void)write_all(STDERR_FILENO, report);
    if (!lines.empty()) what += ": " + lines.back();
    return {.code = rank->ended->code, .failure = what};
  }

  const AgentOptions& options_;
  UniqueFd signals_;
  Shown shown_;
  std::deque<Rank> ranks_;
  std::vector<const Rank*> order_;  // in which they ended
  std::optional<Millis> kill_at_;
  std::optional<Millis> stopped_at_;  // when the first signal came
  const Rank* asked_ = nullptr;       // that one, if a rank got it and not the agent
  std::string why_killed_;            // "by a signal 7.0 s after the first"; empty: as another failed
  bool failing_ = false;
};

}  // namespace

int exit_code(const Error& error) {
  return error.code == ErrorCode::invalid_argument ? kExitUsage : kExitFailed;
}

std::string error_line(int rank, std::string_view message) {
  const bool names_one = rank_prefix(message) > 0;
  return std::string(kErrorStart) + (names_one ? "" : "rank " + std::to_string(rank) + ": ") +
         std::string(message);
}

void hold_stop_signals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void release_stop_signals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

Result<AgentEnd> run_agent(const AgentOptions& options) { return Agent(options).run(); }

std::vector<std::string> rank_flags(const RankPlace& place) {
  std::vector<std::string> flags = {
      "--rank",        std::to_string(place.rank),
      "--world",       std::to_string(place.world),
      "--local-rank",  std::to_string(place.local_rank),
      "--local-world", std::to_string(place.local_world),
      "--node",        std::to_string(place.node),
      "--store",       place.store_host + ":" + std::to_string(place.store_port),
      "--epoch",       place.epoch};
  if (!place.address.empty()) flags.insert(flags.end(), {"--address", place.address});
  return flags;
}

}  // namespace muster::train
