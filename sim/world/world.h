// A whole Muster in one thread: the production loop with its store, effects and clock, an engine with
// runners, clients, and everything that can go wrong between them, all on virtual time. The same seed gives
// the same history.
//
// What is production code here: control, scheduler, service/loop, service/order, wire/record, store/memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "service/loop.h"
#include "sim/checkers/checkers.h"
#include "sim/world/engine.h"
#include "sim/world/faults.h"
#include "sim/world/runner.h"
#include "sim/world/store.h"
#include "sim/world/timeline.h"

namespace muster::sim {

struct WorldOptions {
  std::uint64_t seed = 1;
  int nodes = 4;
  Odds odds;
  Millis quiet_from{0};  // no faults from here on
  bool jitter = true;    // false: no work or message takes time, for scenarios
};

class World final : public RunnerWorld, public service::Executor {
 public:
  explicit World(const WorldOptions& options);
  ~World() override;

  // ---- clients: asked again until answered ----
  using Answered = std::function<void(const Result<control::Reply>&)>;
  void submit(const JobPlan& plan, Answered answered = {});
  void stop(domain::JobKind kind, const std::string& name, Answered answered = {});
  void prune(Answered answered = {});

  // ---- the hostile hand ----
  void crash(Millis down_for, const std::string& why);
  // The process dies at its next commit, before or after the write.
  void crash_at_commit(bool after_the_write, Millis down_for);
  // The process dies when its next launch has started one rank.
  void crash_in_launch(Millis down_for);
  void kill_runner(const domain::LaunchId& id) { engine_->kill(id, "runner killed by signal 9"); }
  void hang_runner(const domain::LaunchId& id);
  void commits_fail(bool fail) { commits_fail_ = fail; }
  void launches_fail(std::optional<Error> error) { launch_error_ = std::move(error); }
  SimEngine& engine() { return *engine_; }

  // ---- time ----
  Timeline& timeline() { return timeline_; }
  void run_until(Millis at) { timeline_.run_until(at); }
  // Until every job has ended, and nothing is left on the nodes and in the outbox, or `at`.
  bool run_until_done(Millis at);

  // ---- what there is ----
  const control::State* state() const { return loop_ ? &loop_->state() : nullptr; }
  const control::State& durable() const { return store_.shadow(); }
  Result<std::optional<domain::Record>> read(domain::RecordKind kind, const std::string& key) {
    return store_.read(kind, key);
  }
  Runner* runner(const std::string& job, int rank);
  const std::vector<std::string>& history() const { return history_; }
  std::uint64_t history_hash() const { return history_hash_; }
  Checkers& checkers() { return checkers_; }
  Rng& rng() { return rng_; }
  std::uint64_t commits() const { return commits_; }
  std::uint64_t crashes() const { return crashes_; }
  void note(const std::string& line);
  std::map<std::string, domain::Job> ended_jobs();
  // The checks of the end; violations are in checkers().
  void check_end();

  // ---- RunnerWorld, Executor ----
  void after(Millis delay, std::function<void()> run) override { timeline_.after(delay, std::move(run)); }
  void send_report(const domain::LaunchId& from, const domain::RankReport& report, Answer answer) override;
  void send_poll(const domain::LaunchId& from, std::uint64_t after, Millis wait,
                 service::Service::DesiredDone answer) override;
  void command_started(const domain::LaunchId& id) override;
  void command_ended(const domain::LaunchId& id, const domain::RankExit& exit) override;
  void protocol_violated(const domain::LaunchId& id, const std::string& what) override;
  void process_ended(const domain::LaunchId& id) override;
  void submit(std::string key, service::Order order) override;

 private:
  class Logs;
  class Tokens;

  SimEngine::Hooks engine_hooks();
  SimStore::Fate fate();
  bool quiet() const { return timeline_.elapsed() >= options_.quiet_from; }
  bool chance(double odds) { return odds > 0 && !quiet() && rng_.chance(odds); }
  Millis between(std::int64_t low, std::int64_t high);
  Millis lag(std::int64_t most);
  void start_control();
  void pump();
  void wake(Millis delay);
  // Runs `deliver` on the loop if the control process is up; false: it is down.
  bool with_loop(const std::function<void(service::Loop&)>& deliver);
  // Calls that wait for the control process; they are cut when it dies.
  std::uint64_t open_call(std::function<void(Error)> cut);
  void cut_calls();
  // One way of a message between a runner and the control plane.
  void carry(const domain::LaunchId& peer, std::function<void()> deliver);
  struct Asking;
  void begin(std::string what, control::Event command,
             std::function<void(const Result<control::Reply>&, int tries)> answered);
  void ask(const std::shared_ptr<Asking>& asking);
  void every_second();
  void note_changes(const control::State& before);
  void note_forgotten(const control::State& before);

  WorldOptions options_;
  Rng rng_;
  Timeline timeline_;
  SimStore store_;
  std::unique_ptr<SimEngine> engine_;
  std::unique_ptr<Logs> logs_;
  std::unique_ptr<Tokens> tokens_;
  std::unique_ptr<service::Loop> loop_;  // null: the control process is down
  std::uint64_t process_ = 0;            // which start of it
  bool pumping_ = false;
  std::optional<Millis> wake_at_;
  std::map<std::uint64_t, std::function<void(Error)>> calls_;
  std::uint64_t next_call_ = 0;
  int asking_ = 0;  // clients that wait for their answer
  bool commits_fail_ = false;
  SimStore::Fate next_fate_ = SimStore::Fate::passes;
  bool next_launch_dies_ = false;
  std::optional<Millis> next_down_;
  std::optional<Error> launch_error_;
  std::map<std::string, Program> programs_;
  std::map<domain::JobId, domain::Job> ended_;  // all that ever did
  std::vector<std::string> history_;
  std::uint64_t history_hash_ = 0;
  std::uint64_t commits_ = 0;
  std::uint64_t crashes_ = 0;
  Checkers checkers_;
};

}  // namespace muster::sim
