// The loop of the control service: the one owner of State.
//
// step() drains up to `batch_max` waiting items; for each event observe, decide, apply; then one scheduling
// cycle; then one blocking transaction with all their changes; then replies, effects, woken watchers and
// queries, in this order. If the transaction fails the whole State is loaded again, every command of the
// batch is answered `unavailable`, no effect leaves, and new jobs are refused until a commit succeeds.
//
// The loop starts no thread. One thread calls step(); the post functions may be called from any thread. What
// it owes the outside it hands to an Executor, which carries orders out and posts how they ended. musterd
// runs it under service/running.h; sim runs it with its own ports.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/notes.h"
#include "base/time.h"
#include "control/control.h"
#include "ports/store.h"
#include "service/order.h"
#include "service/service.h"

namespace muster::service {

struct LoopOptions {
  std::size_t batch_max = 256;
  std::size_t queue_max = 4096;
  std::size_t queue_reserved = 1024;  // of queue_max: for stops and runners
  Millis tick{1'000};
  Millis backoff_min{1'000};  // of a failed effect; doubles up to backoff_max
  Millis backoff_max{60'000};
  int outbox_max = 2;  // entries in hand at once, so that launches and stops find a free thread
  Note note = {};      // what the operator should know: failed commits, effects that fail; may be empty
};

class Loop {
 public:
  using ReplyDone = std::function<void(Result<control::Reply>)>;
  using Query = std::function<void(Loop&)>;
  // Monotonic time for ticks, back-off and long polls; boot_time in musterd, virtual in sim.
  using Monotonic = std::function<Millis()>;

  // Sees the state after every commit and load, before anything of it leaves. Must not block.
  using Committed = std::function<void(const control::State&)>;

  Loop(ports::Store& store, Executor& executor, const Clock& clock, Monotonic monotonic,
       LoopOptions options = {}, Committed committed = {});

  // Takes the epoch and loads the state. Once, before the first step.
  [[nodiscard]] Result<void> open();

  // ---- from any thread ----
  // `done` runs on the loop's thread after the commit, or at once with resource_exhausted when the queue is
  // full. It must not block.
  void post(control::Event event, ReplyDone done = {});
  void query(Query run, std::function<void(Error)> refused);
  void watch(domain::LaunchId launch, std::uint64_t after, Millis wait, Service::DesiredDone done);
  // How an order ended.
  void finished(Finished result);
  // Blocks until there is something to do or a tick is due. False: close() was called.
  bool wait();
  void close();

  // ---- on the loop's thread ----
  // One batch. False: nothing was waiting.
  bool step();
  // Everything that still waits is answered `unavailable`.
  void abandon();
  const control::State& state() const { return state_; }
  ports::Store& store() { return store_; }
  Time now();
  // Set when another process has taken the store over, or it cannot be read: this one must end.
  const std::optional<Error>& fatal() const { return fatal_; }

 private:
  struct Command {
    control::Event event;
    ReplyDone done;
  };
  struct QueryItem {
    Query run;
    std::function<void(Error)> refused;
  };
  struct Watcher {
    domain::LaunchId launch;
    std::uint64_t after = 0;
    Millis deadline{0};
    Service::DesiredDone done;
  };
  struct NewWatch {
    domain::LaunchId launch;
    std::uint64_t after = 0;
    Millis wait{0};
    Service::DesiredDone done;
  };
  using Item = std::variant<Command, QueryItem, NewWatch, Finished>;
  struct Batch;
  struct Backoff {
    int failures = 0;
    Millis until{0};
    bool of_engine = false;  // a stop or release: forgotten when it is owed no longer
  };

  std::optional<Error> enqueue(Item&& item, std::size_t limit);
  std::deque<Item> drain();
  void take(Batch& batch, Item&& item);
  void settle(const std::string& key, const Order& order, const Finished& result);
  void handle(Batch& batch, Command&& command);
  void change(Batch& batch, const domain::Commit& commit);
  std::optional<Error> refusal(const control::Event& event);
  [[nodiscard]] Result<void> write(Batch& batch);
  [[nodiscard]] Result<void> load();
  void try_load();
  std::optional<Error> away() const;
  void recover(Batch& batch, const Error& error);
  void say(std::string_view line) const;
  void release(Batch& batch);
  void release_effects();
  Result<domain::Workload> workload_of(const domain::Job& job);
  void release_outbox();
  void refresh();
  bool issue(std::string key, Order order);  // false: in hand already, or backing off
  void wake_watchers();

  ports::Store& store_;
  Executor& executor_;
  const Clock& clock_;
  Monotonic monotonic_;
  LoopOptions options_;
  Committed committed_;

  control::State state_;
  ports::StoreMeta meta_;
  bool loaded_ = false;
  bool paused_ = false;  // the last commit failed
  std::optional<Error> fatal_;
  Time last_now_;
  std::optional<Millis> last_tick_;
  std::vector<Watcher> watchers_;
  std::map<std::string, Order> in_flight_;
  std::map<std::string, Backoff> backoff_;
  bool refresh_due_ = true;
  std::uint64_t refreshes_ = 0;
  std::string refresh_key_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable ready_;
  std::deque<Item> queue_;
  bool closed_ = false;
};

}  // namespace muster::service
