// Watches the runner processes of the local engine: says when one is gone, ships the spool of one that died
// without its final report, and keeps the deadlines of stops.
//
//   running -> ending -> [draining] -> ended
//
// running   its process lives
// ending    the process is gone (or, after adopt(), not known yet), but the lock may still be held: the last
//           of its node are going
// draining  `muster-runner drain` ships what it left
// ended     known until forget()
//
// Threads: all functions may be called by several threads. The handler is called from the watcher's own
// thread, which sleeps in poll() on the pidfds and has nothing to do in between.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "domain/cluster.h"
#include "engine/local/run_folder.h"
#include "ports/engine.h"

namespace muster::engine::local {

class Watcher {
 public:
  struct Setup {
    std::string run_directory;
    std::string runner_program;
    Millis drain_max{60'000};
  };
  explicit Watcher(Setup setup);
  ~Watcher();  // the processes go on
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Takes over what an earlier musterd left in the run directory. Before start().
  void adopt();
  void start(std::function<void(const ports::NodeExit&)> handler);

  void add(const domain::LaunchId& id, domain::NodeName node, UniqueFd process);  // a child of this process
  bool knows(const domain::LaunchId& id) const;
  Result<void> stop(const domain::LaunchId& id, Millis grace);
  std::vector<domain::Observation> observe() const;

  // Waits until the launch has ended and nothing of its spool is left; asks for one more drain if the last
  // one failed. unavailable when that takes longer than `wait_max` or fails. Unknown: success.
  Result<void> settle(const domain::LaunchId& id, Millis wait_max);
  void forget(const domain::LaunchId& id);

 private:
  enum class State { running, ending, draining, ended };
  struct Entry {
    State state = State::running;
    domain::NodeName node;      // that the launch holds until forget()
    UniqueFd process;           // pidfd of the runner, then of the drain
    bool child = false;         // ours to reap
    bool seen = false;          // its process was known to us
    std::string end;            // "exit 3", "signal 9", or empty
    bool shipped = false;       // nothing is left to ship
    bool announced = false;     // NodeExit posted, or not needed
    std::optional<Millis> due;  // boot time: when to kill, look again, or give up
    Millis since{0};            // when `ending` began
    std::string note;           // why the spool is left
  };

  std::string folder(const domain::LaunchId& id) const;
  static bool find(const ProcessRef& process, Entry& entry);
  void loop(const std::stop_token& stop);
  void step(const domain::LaunchId& id, Entry& entry, bool gone);
  void on_gone(const domain::LaunchId& id, Entry& entry);
  void on_due(const domain::LaunchId& id, Entry& entry);
  void look_again(const domain::LaunchId& id, Entry& entry);
  void begin_drain(const domain::LaunchId& id, Entry& entry);
  void finish(const domain::LaunchId& id, Entry& entry);
  void wake() const;

  const Setup setup_;
  UniqueFd wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<domain::LaunchId, Entry> entries_;
  std::vector<ports::NodeExit> exits_;  // to be posted outside the lock
  std::function<void(const ports::NodeExit&)> handler_;
  std::jthread thread_;
};

}  // namespace muster::engine::local
