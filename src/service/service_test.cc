// The running service on its real threads, with a fake engine: what only threads can show. The rules of jobs
// are tried by tests/scenarios and sim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "service/running.h"
#include "store/memory/store.h"

namespace muster::service {
namespace {

using domain::JobKind;
using domain::RankPhase;

// Two nodes; keeps what it was asked for.
class FakeEngine final : public ports::Engine {
 public:
  void on_exit(std::function<void(const ports::NodeExit&)> handler) override { exit_ = std::move(handler); }
  Result<domain::Inventory> inventory() override {
    domain::Inventory inventory;
    for (const auto* name : {"node-1", "node-2"}) {
      domain::Node node;
      node.name = name;
      inventory.nodes.push_back(node);
    }
    return inventory;
  }
  Result<void> launch(const domain::GangLaunch& gang) override {
    const std::lock_guard lock(mutex_);
    if (refuse) return tl::unexpected(*refuse);
    for (const auto& node : gang.nodes) alive_[node.id] = node.node;
    gangs.push_back(gang);
    changed_.notify_all();
    return {};
  }
  Result<void> stop(const domain::LaunchId& id, Millis) override {
    die(id);
    return {};
  }
  Result<void> release(const domain::LaunchId& id) override {
    const std::lock_guard lock(mutex_);
    released.push_back(id);
    alive_.erase(id);
    dead_.erase(id);
    changed_.notify_all();
    return {};
  }
  Result<std::vector<domain::Observation>> observe() override {
    const std::lock_guard lock(mutex_);
    std::vector<domain::Observation> out;
    for (const auto& [id, node] : alive_) out.push_back({id, node, !dead_.contains(id)});
    return out;
  }
  void die(const domain::LaunchId& id) {
    {
      const std::lock_guard lock(mutex_);
      dead_[id] = true;
    }
    exit_({id, "runner killed by signal 9"});
  }
  template <typename Test>
  bool wait(Test test) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), test);
  }

  std::vector<domain::GangLaunch> gangs;
  std::vector<domain::LaunchId> released;
  std::optional<Error> refuse;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<domain::LaunchId, domain::NodeName> alive_;
  std::map<domain::LaunchId, bool> dead_;
  std::function<void(const ports::NodeExit&)> exit_;
};

// Streams by name, with their lines.
class FakeLogs final : public ports::LogStore {
 public:
  Result<void> create(std::string_view group, std::string_view stream, Time now) override {
    const std::lock_guard lock(mutex);
    streams_[std::string(group)].try_emplace(std::string(stream), Entry{now, {}});
    return {};
  }
  Result<std::uint64_t> append(std::string_view group, std::string_view stream, std::optional<std::uint64_t>,
                               std::span<const ports::LogLine> lines, Time) override {
    const std::lock_guard lock(mutex);
    auto& entry = streams_[std::string(group)][std::string(stream)];
    for (const auto& line : lines) entry.lines.push_back(line.text);
    return entry.lines.size();
  }
  Result<std::vector<ports::LogGroup>> groups(std::string_view) override {
    return std::vector<ports::LogGroup>{};
  }
  Result<std::vector<ports::LogStream>> streams(std::string_view group, std::string_view prefix) override {
    const std::lock_guard lock(mutex);
    std::vector<ports::LogStream> out;
    for (const auto& [name, entry] : streams_[std::string(group)]) {
      if (!name.starts_with(prefix)) continue;
      ports::LogStream stream;
      stream.name = name;
      stream.created = entry.created;
      out.push_back(stream);
    }
    return out;
  }
  Result<ports::LogPage> read(std::string_view group, std::string_view stream,
                              const ports::LogQuery&) override {
    const std::lock_guard lock(mutex);
    ports::LogPage page;
    for (const auto& line : streams_[std::string(group)][std::string(stream)].lines)
      page.events.push_back({0, {}, {}, line});
    return page;
  }
  Result<void> remove(std::string_view group, std::string_view stream) override {
    const std::lock_guard lock(mutex);
    streams_[std::string(group)].erase(std::string(stream));
    return {};
  }

 private:
  struct Entry {
    Time created;
    std::vector<std::string> lines;
  };
  std::mutex mutex;
  std::map<std::string, std::map<std::string, Entry>> streams_;
};

class FakeSecrets final : public ports::Secrets {
 public:
  std::string runner_token(const domain::LaunchId& id, Time) override { return "token " + to_string(id); }
};

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override { start_service(); }
  void start_service(RunningOptions options = {}) {
    options.loop.tick = Millis{20};
    auto started = start({store_, engine_, logs_, secrets_, clock_}, std::move(options));
    ASSERT_TRUE(started) << started.error().message;
    service_ = *std::move(started);
  }
  Result<control::Reply> submit(const std::string& name, int nodes) {
    control::SubmitJob job;
    job.name = name;
    job.nodes = nodes;
    job.request = "{\"name\":\"" + name + "\"}";
    job.workload.job_name = name;
    return service_->call(std::move(job));
  }
  Result<control::Reply> report(const domain::LaunchId& launch, std::uint64_t number, RankPhase phase) {
    domain::RankReport message{launch, number, phase, {}, {}};
    if (phase >= RankPhase::exited) message.exit = domain::RankExit{0, 0, domain::Cause::program, {}, {}};
    return service_->call(control::Report{message});
  }
  // Blocks until the launch's word differs from `after`.
  Result<std::optional<domain::Desired>> word(const domain::LaunchId& launch, std::uint64_t after) {
    std::promise<Result<std::optional<domain::Desired>>> promise;
    service_->watch(launch, after, Millis{10'000},
                    [&](auto desired) { promise.set_value(std::move(desired)); });
    return promise.get_future().get();
  }
  bool eventually(const std::function<bool()>& test) {
    for (int i = 0; i < 500; ++i) {
      if (test()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  SystemClock clock_;
  store::MemoryStore store_;
  FakeEngine engine_;
  FakeLogs logs_;
  FakeSecrets secrets_;
  std::unique_ptr<RunningService> service_;
};

TEST_F(ServiceTest, AJobGoesThroughAllItsPhases) {
  ASSERT_TRUE(submit("demo", 2));
  ASSERT_TRUE(engine_.wait([&] { return engine_.gangs.size() == 1; }));
  const auto gang = engine_.gangs[0];
  ASSERT_EQ(gang.nodes.size(), 2U);
  EXPECT_EQ(gang.runner_tokens[1], "token " + to_string(gang.nodes[1].id));
  EXPECT_EQ(logs_.streams("/aws/sagemaker/TrainingJobs", "demo/algo-")->size(), 2U);

  std::uint64_t version = word(gang.nodes[0].id, 0)->value().version;
  std::thread other([&] {
    for (std::uint64_t i = 0; i < 2; ++i)
      report(gang.nodes[1].id, i + 1, i == 0 ? RankPhase::preparing : RankPhase::ready).value();
  });
  report(gang.nodes[0].id, 1, RankPhase::preparing).value();
  report(gang.nodes[0].id, 2, RankPhase::ready).value();
  const auto run = word(gang.nodes[0].id, version)->value();
  other.join();
  EXPECT_EQ(run.target, domain::Target::run);
  EXPECT_EQ(service_->nodes()->at(1).job, "demo");
  EXPECT_THAT(service_->live_launch(gang.nodes[1].id)->log_stream, ::testing::StartsWith("demo/algo-2-"));
  for (const auto& node : gang.nodes) {
    std::uint64_t number = 3;
    for (const auto phase : {RankPhase::running, RankPhase::exited}) report(node.id, number++, phase).value();
  }
  for (const int rank : {1, 0}) {
    const auto& id = gang.nodes[static_cast<std::size_t>(rank)].id;
    std::uint64_t number = 5;
    for (const auto phase : {RankPhase::uploading, RankPhase::uploaded, RankPhase::finished})
      report(id, number++, phase).value();
  }
  const auto view = service_->job(JobKind::training, "demo");
  ASSERT_TRUE(view);
  EXPECT_EQ(view->job.end->outcome, domain::Outcome::succeeded);
  EXPECT_EQ(view->request, "{\"name\":\"demo\"}");
  EXPECT_EQ(service_->jobs(JobKind::training)->at(0).outcome, domain::Outcome::succeeded);
  EXPECT_FALSE(service_->live_launch(gang.nodes[0].id));
  EXPECT_EQ(report(gang.nodes[0].id, 7, RankPhase::finished)->answer, domain::ReportAnswer::stale);

  for (const auto& node : gang.nodes) engine_.die(node.id);
  EXPECT_TRUE(engine_.wait([&] { return engine_.released.size() == 2; }));
  EXPECT_TRUE(service_->call(control::PruneJobs{clock_.now() + Millis{1000}})->pruned.size() == 1);
  EXPECT_TRUE(eventually([&] { return logs_.streams("/aws/sagemaker/TrainingJobs", "")->empty(); }));
  EXPECT_EQ(service_->job(JobKind::training, "demo").error().code, ErrorCode::not_found);
}

// The wall clock may be ahead of the job's times when it is launched, and be put back: its logs must go with
// it.
TEST_F(ServiceTest, APruneFindsTheLogsOfALaunchUnderAWrongClock) {
  domain::Attempt attempt;
  attempt.created = Time{5'000};
  attempt.ranks.emplace_back();
  const OrderPorts ports{engine_, logs_, secrets_, clock_};
  const LaunchOrder launch{attempt, JobKind::training, "demo", domain::Workload{}};
  EXPECT_TRUE(perform("launch", launch, ports).event);
  ASSERT_EQ(logs_.streams("/aws/sagemaker/TrainingJobs", "demo/")->size(), 1U);
  const domain::Outbox forget{1, "forget-logs",
                              R"({"group":"/aws/sagemaker/TrainingJobs","prefix":"demo/","until":6000})"};
  EXPECT_EQ(perform("outbox", OutboxOrder{forget}, ports).error, std::nullopt);
  EXPECT_EQ(logs_.streams("/aws/sagemaker/TrainingJobs", "demo/")->size(), 0U);
}

TEST_F(ServiceTest, ALaunchIsLookedUpWithoutTheControlThread) {
  ASSERT_TRUE(submit("demo", 1));
  ASSERT_TRUE(engine_.wait([&] { return engine_.gangs.size() == 1; }));
  const auto launch = engine_.gangs[0].nodes[0].id;
  std::promise<void> held;
  std::promise<void> let_go;
  service_->watch(launch, UINT64_MAX, Millis{0}, [&](auto) {
    held.set_value();
    let_go.get_future().wait();
  });
  held.get_future().wait();
  EXPECT_TRUE(service_->live_launch(launch));
  let_go.set_value();
  EXPECT_TRUE(service_->jobs(JobKind::training));  // after the callback
}

TEST_F(ServiceTest, ALaunchErrorIsInTheLogsAndInTheReason) {
  engine_.refuse = Error{ErrorCode::not_found, "no program nanny"};
  ASSERT_TRUE(submit("demo", 1));
  ASSERT_TRUE(eventually(
      [&] { return service_->job(JobKind::training, "demo")->job.phase == domain::Phase::ended; }));
  EXPECT_EQ(service_->job(JobKind::training, "demo")->job.end->reason, "the launch failed: no program nanny");
  const auto stream = logs_.streams("/aws/sagemaker/TrainingJobs", "demo/")->at(0).name;
  EXPECT_EQ(logs_.read("/aws/sagemaker/TrainingJobs", stream, {})->events.at(0).text,
            "muster: the launch failed: no program nanny");
}

// Requests cannot be read while `broken`.
struct TornStore final : ports::Store {
  explicit TornStore(ports::Store& store) : disk(store) {}
  Result<ports::StoreMeta> meta() override { return disk.meta(); }
  Result<ports::StoreMeta> open_epoch() override { return disk.open_epoch(); }
  Result<domain::Commit> load() override { return disk.load(); }
  Result<std::optional<domain::Record>> read(domain::RecordKind kind, std::string_view key) override {
    if (broken && kind == domain::RecordKind::request) return fail(ErrorCode::io, "page 7 is torn");
    return disk.read(kind, key);
  }
  Result<ports::StoreMeta> commit(std::uint64_t sequence, std::uint64_t epoch,
                                  const domain::Commit& commit) override {
    return disk.commit(sequence, epoch, commit);
  }
  std::optional<Shortage> low_on_space() override { return disk.low_on_space(); }
  ports::Store& disk;
  std::atomic<bool> broken{true};
};

// It would hold its nodes for ever.
TEST_F(ServiceTest, AJobWhoseRequestCannotBeReadFails) {
  service_->shut_down();
  TornStore store(store_);
  RunningOptions options;
  options.loop.tick = Millis{20};
  service_ = *start({store, engine_, logs_, secrets_, clock_}, options);
  ASSERT_TRUE(submit("demo", 2));
  EXPECT_TRUE(
      eventually([&] { return service_->jobs(JobKind::training)->at(0).phase == domain::Phase::ended; }));
  store.broken = false;
  const auto end = service_->job(JobKind::training, "demo")->job.end;
  EXPECT_EQ(end->cause, domain::Cause::infrastructure);
  EXPECT_THAT(end->reason, ::testing::AllOf(::testing::HasSubstr("the launch failed: "),
                                            ::testing::HasSubstr("its request cannot be read"),
                                            ::testing::HasSubstr("page 7 is torn")));
  service_->shut_down();  // before its store goes
  EXPECT_TRUE(engine_.gangs.empty());
}

// What List shows of a job that winds down is told by the cause, as in Describe.
TEST_F(ServiceTest, TheSummaryOfAJobThatFailsSaysWhyItIsStopped) {
  ASSERT_TRUE(submit("demo", 2));
  ASSERT_TRUE(engine_.wait([&] { return engine_.gangs.size() == 1; }));
  EXPECT_EQ(service_->jobs(JobKind::training)->at(0).stop, std::nullopt);
  domain::RankReport failed{engine_.gangs[0].nodes[0].id, 1, RankPhase::exited, {}, {}};
  failed.exit = domain::RankExit{1, 0, domain::Cause::program, "boom", {}};
  ASSERT_TRUE(service_->call(control::Report{failed}));
  EXPECT_EQ(service_->jobs(JobKind::training)->at(0).stop, domain::Cause::program);
  ASSERT_TRUE(service_->call(control::StopJob{JobKind::training, "demo"}));
  EXPECT_EQ(service_->jobs(JobKind::training)->at(0).stop, domain::Cause::user);
}

TEST_F(ServiceTest, WhatCannotRunIsRefusedWithTheNumbers) {
  ASSERT_TRUE(eventually([&] { return service_->nodes()->size() == 2; }));
  const auto refused = submit("wide", 8);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(refused.error().message,
            "training job wide needs 8 nodes, this service has 2: ask for fewer or add nodes");
}

TEST_F(ServiceTest, AFailedCommitRefusesAndTheServiceRecovers) {
  ASSERT_TRUE(submit("kept", 2));
  ASSERT_TRUE(engine_.wait([&] { return engine_.gangs.size() == 1; }));
  service_->shut_down();  // the memory store is not thread-safe: change its faults while nobody uses it
  store_.fail_after(0);
  start_service();
  EXPECT_EQ(submit("lost", 1).error().code, ErrorCode::unavailable);
  EXPECT_EQ(service_->job(JobKind::training, "lost").error().code, ErrorCode::not_found);
  EXPECT_EQ(submit("paused", 1).error().message,
            "the state store refuses writes: no new jobs until it accepts one");
  EXPECT_EQ(service_->job(JobKind::training, "kept")->job.phase, domain::Phase::launching);
  EXPECT_EQ(service_->call(control::StopJob{JobKind::training, "kept"}).error().code, ErrorCode::unavailable);
  service_->shut_down();
  store_.heal();
  start_service();
  EXPECT_TRUE(submit("later", 1));
  EXPECT_TRUE(service_->call(control::StopJob{JobKind::training, "kept"}));
}

TEST_F(ServiceTest, ManySubmitsFromManyThreads) {
  std::atomic<int> accepted{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i)
        accepted += submit("j" + std::to_string(t) + "-" + std::to_string(i), 1) ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(accepted.load(), 200);
  EXPECT_EQ(service_->jobs(JobKind::training)->size(), 200U);
  EXPECT_FALSE(submit("j0-0", 1));
}

TEST_F(ServiceTest, PollsAnswerAtTheirDeadlineAndAtShutDown) {
  ASSERT_TRUE(submit("demo", 1));
  ASSERT_TRUE(engine_.wait([&] { return engine_.gangs.size() == 1; }));
  const auto id = engine_.gangs[0].nodes[0].id;
  const auto version = word(id, 0)->value().version;
  std::promise<std::uint64_t> same;
  service_->watch(id, version, Millis{50}, [&](auto desired) { same.set_value(desired->value().version); });
  EXPECT_EQ(same.get_future().get(), version);
  std::promise<ErrorCode> cut;
  service_->watch(id, version, Millis{60'000}, [&](auto desired) { cut.set_value(desired.error().code); });
  service_->shut_down();
  EXPECT_EQ(cut.get_future().get(), ErrorCode::unavailable);
  EXPECT_FALSE(word({domain::AttemptId{99}, 0, 1}, 0));
}

}  // namespace
}  // namespace muster::service
