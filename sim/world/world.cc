#include "sim/world/world.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace muster::sim {

using service::Loop;

// Remembers which streams exist: each must before its runner does.
class World::Logs final : public ports::LogStore {
 public:
  bool has(const std::string& group, const std::string& stream) const {
    return streams_.contains({group, stream});
  }
  Result<void> create(std::string_view group, std::string_view stream, Time now) override {
    streams_.try_emplace({std::string(group), std::string(stream)}, now);
    return {};
  }
  Result<std::uint64_t> append(std::string_view, std::string_view, std::optional<std::uint64_t>,
                               std::span<const ports::LogLine> lines, Time) override {
    return lines.size();
  }
  Result<std::vector<ports::LogGroup>> groups(std::string_view) override {
    return std::vector<ports::LogGroup>{};
  }
  Result<std::vector<ports::LogStream>> streams(std::string_view group, std::string_view prefix) override {
    std::vector<ports::LogStream> result;
    for (const auto& [id, created] : streams_) {
      if (id.first != group || !id.second.starts_with(prefix)) continue;
      auto& stream = result.emplace_back();
      stream.name = id.second;
      stream.created = created;
    }
    return result;
  }
  Result<ports::LogPage> read(std::string_view, std::string_view, const ports::LogQuery&) override {
    return ports::LogPage{};
  }
  Result<void> remove(std::string_view group, std::string_view stream) override {
    streams_.erase({std::string(group), std::string(stream)});
    return {};
  }

 private:
  std::map<std::pair<std::string, std::string>, Time> streams_;  // group and stream
};

class World::Tokens final : public ports::Secrets {
 public:
  std::string runner_token(const domain::LaunchId& id, Time) override { return to_string(id); }
};

World::World(const WorldOptions& options)
    : options_(options),
      rng_(options.seed),
      logs_(std::make_unique<Logs>()),
      tokens_(std::make_unique<Tokens>()) {
  std::vector<domain::Node> nodes;
  for (int i = 1; i <= options.nodes; ++i) {
    domain::Node node;
    node.name = "node-" + std::to_string(i);
    nodes.push_back(std::move(node));
  }
  engine_ = std::make_unique<SimEngine>(std::move(nodes), engine_hooks());
  store_.fate = [this] { return fate(); };
  store_.committed = [this](const control::State& before) {
    ++commits_;
    checkers_.committed(before, store_.shadow());
    note_changes(before);
    note_forgotten(before);
  };
  start_control();
  timeline_.after(Millis{1'000}, [this] { every_second(); });
}

World::~World() = default;

SimEngine::Hooks World::engine_hooks() {
  SimEngine::Hooks hooks;
  hooks.refuse = [this](const domain::GangLaunch& gang) -> std::optional<Error> {
    if (launch_error_) return launch_error_;
    if (!chance(options_.odds.launch_fails)) return std::nullopt;
    note("launch of attempt " + to_string(gang.attempt) + " fails");
    return Error{ErrorCode::io, "the simulated engine refused"};
  };
  hooks.dies_after = [this](const domain::GangLaunch& gang) -> std::optional<int> {
    if (std::exchange(next_launch_dies_, false)) return 1;
    if (!chance(options_.odds.crash_in_launch)) return std::nullopt;
    return static_cast<int>(rng_.below(gang.nodes.size() + 1));
  };
  hooks.make_runner = [this](const domain::NodeLaunch& launch) {
    const auto& name = launch.workload.job_name;
    if (!logs_->has(domain::log_group(launch.workload.kind),
                    domain::log_stream(name, launch.id.rank, launch.attempt_created))) {
      checkers_.violation(to_string(launch.id) + " starts before its log stream exists");
    }
    return std::make_shared<Runner>(*this, launch, programs_.at(name));
  };
  hooks.exited = [this](const ports::NodeExit& exit) {
    const auto process = process_;
    timeline_.after(lag(20), [this, exit, process] {
      if (process != process_) return;  // the control process that would have been told is gone
      with_loop([&](Loop& loop) { loop.post(control::RankGone{exit.id, exit.message}); });
    });
  };
  hooks.violation = [this](const std::string& what) { checkers_.violation(what); };
  hooks.history = [this](const std::string& line) { note(line); };
  hooks.after = [this](Millis delay, std::function<void()> run) { timeline_.after(delay, std::move(run)); };
  return hooks;
}

Millis World::between(std::int64_t low, std::int64_t high) {
  return Millis{options_.jitter ? rng_.between(low, high) : low};
}

// The time that work or a message takes.
Millis World::lag(std::int64_t most) { return Millis{options_.jitter ? rng_.between(1, most) : 0}; }

SimStore::Fate World::fate() {
  using enum SimStore::Fate;
  if (commits_fail_) return fails;
  if (next_fate_ != passes) return std::exchange(next_fate_, passes);
  const auto& odds = options_.odds;
  if (chance(odds.commit_fails)) return fails;
  if (chance(odds.commit_fails_late)) return fails_late;
  if (chance(odds.crash_before)) return crash_before;
  if (chance(odds.crash_after)) return crash_after;
  return passes;
}

// ---- the control process ----

void World::start_control() {
  ++process_;
  service::LoopOptions options;
  loop_ = std::make_unique<Loop>(
      store_, *this, timeline_, [this] { return timeline_.elapsed(); }, options);
  const auto opened = loop_->open();
  MUSTER_ASSERT(opened.has_value());
  note("musterd starts, process " + std::to_string(process_));
  checkers_.loaded(loop_->state(), store_.shadow());
  wake(Millis{0});
}

void World::crash(Millis down_for, const std::string& why) {
  if (!loop_) return;
  MUSTER_ASSERT(!pumping_);
  note("musterd dies: " + why);
  ++crashes_;
  ++process_;
  loop_.reset();
  wake_at_.reset();
  cut_calls();
  timeline_.after(down_for, [this] { start_control(); });
}

void World::crash_at_commit(bool after_the_write, Millis down_for) {
  next_fate_ = after_the_write ? SimStore::Fate::crash_after : SimStore::Fate::crash_before;
  next_down_ = down_for;
}

void World::crash_in_launch(Millis down_for) {
  next_launch_dies_ = true;
  next_down_ = down_for;
}

void World::hang_runner(const domain::LaunchId& id) {
  note("runner " + to_string(id) + " hangs");
  engine_->hang(id);
}

void World::wake(Millis delay) {
  const auto at = timeline_.elapsed() + delay;
  if (wake_at_ && *wake_at_ <= at) return;
  wake_at_ = at;
  timeline_.after(delay, [this, at] {
    if (wake_at_ != at) return;
    wake_at_.reset();
    pump();
  });
}

void World::pump() {
  if (!loop_) return;
  try {
    pumping_ = true;
    while (loop_->step()) checkers_.stepped(loop_->state(), store_.shadow());
    pumping_ = false;
  } catch (const Crash&) {
    pumping_ = false;
    const auto down_for = std::exchange(next_down_, std::nullopt);
    return crash(down_for.value_or(between(1, 20'000)), "at a commit");
  }
  wake(Millis{1'000});
}

bool World::with_loop(const std::function<void(Loop&)>& deliver) {
  if (!loop_) return false;
  deliver(*loop_);
  wake(lag(4));  // what comes meanwhile shares the commit
  return true;
}

// ---- effects ----

void World::submit(std::string key, service::Order order) {
  if (const auto* launch = std::get_if<service::LaunchOrder>(&order)) {
    checkers_.launching(launch->attempt.id, store_.shadow());
  }
  const auto process = process_;
  timeline_.after(lag(200), [this, process, key = std::move(key), order = std::move(order)] {
    if (process != process_) return;  // the process died before it
    service::Finished finished;
    try {
      finished = service::perform(key, order, {*engine_, *logs_, *tokens_, timeline_});
    } catch (const Crash&) {
      const auto down_for = std::exchange(next_down_, std::nullopt);
      return crash(down_for.value_or(between(1, 20'000)), "in the middle of a launch");
    }
    timeline_.after(lag(50), [this, process, finished = std::move(finished)] {
      if (process != process_) return;  // carried out, but nobody is left to hear it
      with_loop([&](Loop& loop) { loop.finished(finished); });
    });
  });
}

// ---- messages ----

void World::carry(const domain::LaunchId& peer, std::function<void()> deliver) {
  if (chance(options_.odds.drop)) return;
  const auto once = [this, peer, deliver] {
    if (engine_->reachable(peer)) deliver();
  };
  if (!engine_->reachable(peer)) return;
  timeline_.after(chance(options_.odds.late) ? lag(30'000) : lag(10), once);
  if (chance(options_.odds.duplicate)) timeline_.after(lag(30'000), once);
}

std::uint64_t World::open_call(std::function<void(Error)> cut) {
  calls_.emplace(++next_call_, std::move(cut));
  return next_call_;
}

void World::cut_calls() {
  for (auto& [id, cut] : std::exchange(calls_, {})) cut({ErrorCode::unavailable, "connection reset"});
}

void World::send_report(const domain::LaunchId& from, const domain::RankReport& report, Answer answer) {
  carry(from, [this, from, report, answer = std::move(answer)] {
    const auto reply = [this, from, answer](Result<control::Reply> result) {
      carry(from, [answer, result = std::move(result)] { answer(result); });
    };
    if (!loop_) return reply(fail(ErrorCode::unavailable, "connection refused"));
    const auto call = open_call([reply](Error error) { reply(tl::unexpected(std::move(error))); });
    with_loop([&](Loop& loop) {
      loop.post(control::Report{report}, [this, call, reply](Result<control::Reply> result) {
        if (calls_.erase(call) == 1) reply(std::move(result));
      });
    });
  });
}

void World::send_poll(const domain::LaunchId& from, std::uint64_t after, Millis wait,
                      service::Service::DesiredDone answer) {
  carry(from, [this, from, after, wait, answer = std::move(answer)] {
    const auto reply = [this, from, answer](Result<std::optional<domain::Desired>> result) {
      carry(from, [answer, result = std::move(result)] { answer(result); });
    };
    if (!loop_) return reply(fail(ErrorCode::unavailable, "connection refused"));
    const auto call = open_call([reply](Error error) { reply(tl::unexpected(std::move(error))); });
    with_loop([&](Loop& loop) {
      loop.watch(from, after, wait, [this, call, reply](Result<std::optional<domain::Desired>> result) {
        if (calls_.erase(call) == 1) reply(std::move(result));
      });
    });
  });
}

void World::command_started(const domain::LaunchId& id) { checkers_.command_started(id, *engine_); }

void World::command_ended(const domain::LaunchId& id, const domain::RankExit& exit) {
  // Only where nothing else delays the word to the others.
  if (options_.odds == Odds{}) checkers_.command_ended(id, exit, timeline_.elapsed());
}

void World::protocol_violated(const domain::LaunchId& id, const std::string& what) {
  checkers_.violation("runner " + to_string(id) + ": " + what);
}

void World::process_ended(const domain::LaunchId& id) { engine_->ended(id); }

Runner* World::runner(const std::string& job, int rank) {
  for (const auto& [id, process] : engine_->processes()) {
    if (id.rank == rank && process.runner->alive() && process.runner->launch().workload.job_name == job) {
      return process.runner.get();
    }
  }
  return nullptr;
}

// ---- clients ----

struct World::Asking {
  std::string what;
  control::Event command;
  std::function<void(const Result<control::Reply>&, int tries)> answered;
  int tries = 0;
  bool done = false;
};

void World::ask(const std::shared_ptr<Asking>& asking) {
  if (asking->done) return;
  const int self = ++asking->tries;
  const auto again = [this, asking, self](Millis delay) {
    timeline_.after(delay, [this, asking, self] {
      if (asking->tries == self) ask(asking);
    });
  };
  const auto up = with_loop([&](Loop& loop) {
    loop.post(asking->command, [this, asking, again](Result<control::Reply> reply) {
      if (asking->done) return;
      note("client: " + asking->what + ": " + (reply ? "ok" : reply.error().message));
      if (!reply && reply.error().code == ErrorCode::unavailable) return again(between(500, 1'500));
      asking->done = true;
      --asking_;
      if (asking->answered) asking->answered(reply, asking->tries);
    });
  });
  again(up ? Millis{30'000} : Millis{1'000});  // a client whose server dies under it hears nothing
}

void World::begin(std::string what, control::Event command,
                  std::function<void(const Result<control::Reply>&, int tries)> answered) {
  ++asking_;
  const auto asking = std::make_shared<Asking>();
  asking->what = std::move(what);
  asking->command = std::move(command);
  asking->answered = std::move(answered);
  ask(asking);
}

void World::submit(const JobPlan& plan, Answered answered) {
  programs_.emplace(plan.name, plan.program);
  control::SubmitJob job;
  job.kind = plan.kind;
  job.name = plan.name;
  job.nodes = plan.nodes;
  job.retries = plan.retries;
  job.max_runtime = plan.max_runtime;
  job.grace = plan.grace;
  job.workload.kind = plan.kind;
  job.workload.job_name = plan.name;
  job.workload.max_runtime = plan.max_runtime;
  job.workload.grace = plan.grace;
  job.request = "{}";
  begin("submit " + plan.name, std::move(job), [this, plan, answered](const auto& reply, int tries) {
    // An earlier try may have been accepted without its answer arriving.
    const bool accepted = reply || (tries > 1 && reply.error().code == ErrorCode::already_exists);
    if (accepted) {
      checkers_.planned(plan);
      checkers_.submitted(plan.kind, plan.name, store_.shadow());
    }
    if (answered) answered(reply);
  });
}

void World::stop(domain::JobKind kind, const std::string& name, Answered answered) {
  begin("stop " + name, control::StopJob{kind, name}, [this, name, answered](const auto& reply, int) {
    if (reply) checkers_.stop_accepted(name);
    if (answered) answered(reply);
  });
}

void World::prune(Answered answered) {
  const auto before = timeline_.now() + Millis{1};
  checkers_.prune_asked(before);
  begin("prune", control::PruneJobs{before}, [this, answered](const auto& reply, int) {
    checkers_.prune_answered();
    if (answered) answered(reply);
  });
}

// ---- the passing of time ----

void World::every_second() {
  timeline_.after(Millis{1'000}, [this] { every_second(); });
  const auto& odds = options_.odds;
  if (chance(odds.crash)) crash(between(1, 20'000), "killed by signal 9");
  if (chance(odds.wall_clock_steps)) {
    const auto by = between(-3'600'000, 3'600'000);
    note("the wall clock steps by " + std::to_string(by.count()) + " ms");
    timeline_.step_wall_clock(by);
  }
  std::vector<domain::LaunchId> alive;
  for (const auto& [id, process] : engine_->processes()) {
    if (process.runner->alive()) alive.push_back(id);
  }
  for (const auto& id : alive) {
    if (chance(odds.runner_dies)) kill_runner(id);
    if (chance(odds.runner_hangs)) hang_runner(id);
  }
  std::vector<domain::NodeName> healthy;
  for (const auto& node : engine_->nodes()) {
    if (node.healthy) healthy.push_back(node.name);
  }
  for (const auto& name : healthy) {
    const bool dies = chance(odds.node_dies);
    if (!dies && !chance(odds.node_parts)) continue;
    note(name + (dies ? " goes down" : " becomes unreachable"));
    if (dies) {
      engine_->node_dies(name);
    } else {
      engine_->node_parts(name);
    }
    timeline_.after(between(1'000, 60'000), [this, name] {
      note(name + " is back");
      engine_->node_returns(name);
    });
  }
}

bool World::run_until_done(Millis at) {
  while (timeline_.elapsed() < at) {
    if (quiet() && loop_ && asking_ == 0 && store_.shadow().jobs.empty() && store_.shadow().outbox.empty() &&
        engine_->processes().empty())
      return true;
    timeline_.step();
  }
  return false;
}

void World::note(const std::string& line) {
  const auto elapsed = timeline_.elapsed().count();
  auto seconds = std::to_string(elapsed / 1000) + "." + std::to_string(1000 + elapsed % 1000).substr(1);
  seconds.insert(0, std::size_t{9} - std::min<std::size_t>(seconds.size(), 9), ' ');
  history_.push_back(seconds + "  " + line);
  for (const char c : history_.back())
    history_hash_ = Rng::mix(history_hash_ ^ static_cast<unsigned char>(c));
}

void World::note_changes(const control::State& before) {
  const auto describe = [&](const domain::Job& job, std::size_t from) {
    for (std::size_t i = from; i < job.history.size(); ++i) {
      const auto& entry = job.history[i];
      note("job " + job.name + ": " + std::string(to_string(entry.phase)) +
           (entry.stopping ? " (stopping)" : "") + ": " + entry.message);
    }
  };
  const auto known = [&](domain::JobId id) {
    const auto found = before.jobs.find(id);
    return found == before.jobs.end() ? std::size_t{0} : found->second.history.size();
  };
  for (const auto& [id, job] : store_.shadow().jobs) describe(job, known(id));
  for (const auto& [id, job] : store_.shadow().ended) {
    if (before.ended.contains(id)) continue;
    const auto record = store_.read(domain::RecordKind::job, to_string(id));
    if (!record || !*record) continue;
    const auto& ended = ended_.insert_or_assign(id, std::get<domain::Job>(**record)).first->second;
    describe(ended, known(id));
  }
}

void World::note_forgotten(const control::State& before) {
  const auto& durable = store_.shadow();
  const auto forget = [&](domain::JobId id, domain::JobKind kind, const std::string& name) {
    if (durable.jobs.contains(id) || durable.ended.contains(id)) return;
    note("job " + name + " is forgotten");
    const auto ended = ended_.find(id);
    checkers_.forgotten(kind, name, ended == ended_.end() ? nullptr : &ended->second, *engine_);
  };
  for (const auto& [id, job] : before.jobs) forget(id, job.kind, job.name);
  for (const auto& [id, job] : before.ended) forget(id, job.kind, job.name);
}

std::map<std::string, domain::Job> World::ended_jobs() {
  std::map<std::string, domain::Job> result;
  for (const auto& [id, job] : store_.shadow().ended) {
    const auto record = store_.read(domain::RecordKind::job, to_string(id));
    if (record && *record) result.emplace(job.name, std::get<domain::Job>(**record));
  }
  return result;
}

void World::check_end() { checkers_.ended(store_.shadow(), *engine_, ended_jobs(), *logs_); }

}  // namespace muster::sim
