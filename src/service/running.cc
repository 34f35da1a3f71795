#include "service/running.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "service/live_launches.h"

namespace muster::service {
namespace {

using domain::JobKind;
using domain::LaunchId;

// Carries orders out on a few threads. Its queue is bounded by the loop: one order a key.
class Pool final : public Executor {
 public:
  Pool(const OrderPorts& ports, int threads) : ports_(ports), count_(threads) {}
  ~Pool() override { stop(); }

  void start(std::shared_ptr<Loop> loop) {
    loop_ = std::move(loop);
    for (int i = 0; i < count_; ++i)
      threads_.emplace_back([this](const std::stop_token& token) { work(token); });
  }

  void submit(std::string key, Order order) override {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(std::move(key), std::move(order));
    ready_.notify_one();
  }

  void stop() {
    for (auto& thread : threads_) thread.request_stop();
    ready_.notify_all();
    threads_.clear();
    loop_.reset();
  }

 private:
  void work(const std::stop_token& token) {
    while (true) {
      std::unique_lock lock(mutex_);
      if (!ready_.wait(lock, token, [this] { return !queue_.empty(); })) return;
      auto [key, order] = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      loop_->finished(perform(key, order, ports_));
    }
  }

  OrderPorts ports_;
  int count_;
  std::shared_ptr<Loop> loop_;
  std::mutex mutex_;
  std::condition_variable_any ready_;
  std::deque<std::pair<std::string, Order>> queue_;
  std::vector<std::jthread> threads_;
};

JobSummary summary_of(const domain::Job& job) {
  return {job.id,       job.kind,     job.name,  job.created,
          job.modified, std::nullopt, job.phase, job.stop ? std::optional(job.stop->cause) : std::nullopt,
          std::nullopt, std::nullopt};
}

JobSummary summary_of(const control::EndedJob& job) {
  return {job.id, job.kind,    job.name, job.created, job.modified, job.ended, domain::Phase::ended,
          {},     job.outcome, job.cause};
}

Result<domain::Record> read(ports::Store& store, domain::RecordKind kind, domain::JobId id) {
  MUSTER_TRY(auto record, store.read(kind, to_string(id)));
  if (!record) {
    return fail(ErrorCode::corrupt, "the state store has no record of kind " +
                                        std::to_string(static_cast<int>(kind)) + " for job " + to_string(id));
  }
  return *std::move(record);
}

Result<JobView> view_job(Loop& loop, JobKind kind, const std::string& name) {
  const auto& state = loop.state();
  const auto found = state.names.find({kind, name});
  if (found == state.names.end()) {
    return fail(ErrorCode::not_found, std::string(to_string(kind)) + " job " + name + " does not exist");
  }
  JobView view;
  if (const auto live = state.jobs.find(found->second); live != state.jobs.end()) {
    view.job = live->second;
    view.explanation = control::explain(state, found->second, loop.now());
  } else {
    MUSTER_TRY(auto job, read(loop.store(), domain::RecordKind::job, found->second));
    view.job = std::get<domain::Job>(std::move(job));
  }
  MUSTER_TRY(auto request, read(loop.store(), domain::RecordKind::request, found->second));
  view.request = std::get<domain::JobRequest>(std::move(request)).request;
  return view;
}

std::vector<JobSummary> list_jobs(const control::State& state, JobKind kind) {
  std::vector<JobSummary> result;
  for (const auto& [id, job] : state.ended) {
    if (job.kind == kind) result.push_back(summary_of(job));
  }
  for (const auto& [id, job] : state.jobs) {
    if (job.kind == kind) result.push_back(summary_of(job));
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return result;
}

std::vector<NodeView> list_nodes(const control::State& state) {
  const auto holders = control::holders(state);
  std::vector<NodeView> result;
  for (const auto& node : state.nodes) {
    NodeView view{node, {}, 0};
    if (const auto holder = holders.find(node.name); holder != holders.end()) {
      view.job = control::current(state, holder->second)->job->name;
      view.rank = holder->second.rank;
    }
    result.push_back(std::move(view));
  }
  return result;
}

class Running final : public RunningService {
 public:
  Running(const ServicePorts& ports, RunningOptions options)
      : pool_({ports.engine, ports.logs, ports.secrets, ports.clock}, options.executor_threads),
        loop_(std::make_shared<Loop>(ports.store, pool_, ports.clock, boot_time, options.loop,
                                     [this](const control::State& state) { launches_.publish(state); })),
        on_fatal_(std::move(options.on_fatal)) {}
  ~Running() override { shut_down(); }

  Result<void> start(ports::Engine& engine) {
    MUSTER_CHECK(loop_->open());
    engine.on_exit([loop = std::weak_ptr<Loop>(loop_)](const ports::NodeExit& exit) {
      if (const auto alive = loop.lock()) alive->post(control::RankGone{exit.id, exit.message});
    });
    pool_.start(loop_);
    control_ = std::thread([this] { run(); });
    return {};
  }

  void shut_down() override {
    const std::lock_guard lock(shut_down_mutex_);
    loop_->close();
    if (control_.joinable()) control_.join();
    pool_.stop();
  }

  Result<control::Reply> call(control::Event command) override {
    const auto promise = std::make_shared<std::promise<Result<control::Reply>>>();
    loop_->post(std::move(command),
                [promise](Result<control::Reply> reply) { promise->set_value(std::move(reply)); });
    return promise->get_future().get();
  }

  Result<JobView> job(JobKind kind, const std::string& name) override {
    return ask<JobView>([kind, name](Loop& loop) { return view_job(loop, kind, name); });
  }
  Result<std::vector<JobSummary>> jobs(JobKind kind) override {
    return ask<std::vector<JobSummary>>([kind](Loop& loop) { return list_jobs(loop.state(), kind); });
  }
  Result<std::vector<NodeView>> nodes() override {
    return ask<std::vector<NodeView>>([](Loop& loop) { return list_nodes(loop.state()); });
  }
  Result<domain::AccessKey> access_key(const std::string& id) override {
    return ask<domain::AccessKey>([id](Loop& loop) -> Result<domain::AccessKey> {
      const auto found = loop.state().access_keys.find(id);
      if (found == loop.state().access_keys.end()) {
        return fail(ErrorCode::not_found, "access key " + id + " does not exist");
      }
      return found->second;
    });
  }
  void watch(const LaunchId& launch, std::uint64_t after, Millis wait, DesiredDone done) override {
    loop_->watch(launch, after, wait, std::move(done));
  }
  std::optional<LaunchInfo> live_launch(const LaunchId& launch) override { return launches_.find(launch); }

 private:
  template <typename T>
  Result<T> ask(std::function<Result<T>(Loop&)> question) {
    const auto promise = std::make_shared<std::promise<Result<T>>>();
    loop_->query(
        [promise, question = std::move(question)](Loop& loop) { promise->set_value(question(loop)); },
        [promise](Error error) { promise->set_value(tl::unexpected(std::move(error))); });
    return promise->get_future().get();
  }

  void run() {
    bool said = false;
    while (loop_->wait()) {
      while (loop_->step()) {
      }
      if (loop_->fatal() && !std::exchange(said, true) && on_fatal_) on_fatal_(*loop_->fatal());
    }
    loop_->abandon();
  }

  LiveLaunches launches_;
  Pool pool_;
  std::shared_ptr<Loop> loop_;
  std::function<void(const Error&)> on_fatal_;
  std::mutex shut_down_mutex_;
  std::thread control_;
};

}  // namespace

Result<std::unique_ptr<RunningService>> start(const ServicePorts& ports, RunningOptions options) {
  auto running = std::make_unique<Running>(ports, std::move(options));
  MUSTER_CHECK(running->start(ports.engine));
  return std::unique_ptr<RunningService>(std::move(running));
}

}  // namespace muster::service
