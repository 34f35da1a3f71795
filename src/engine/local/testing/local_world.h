// A data directory and a local engine on it whose runners are testing/test_runner.cc. For tests. One thread,
// that of the test; exits are noted from any.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/file.h"
#include "base/testing.h"
#include "base/text.h"
#include "engine/contract/gang.h"
#include "engine/local/local_engine.h"
#include "engine/local/run_folder.h"

namespace muster::engine::local {

inline constexpr domain::AttemptId kAttempt{1};
inline domain::LaunchId launch_id(int rank) { return {.attempt = kAttempt, .rank = rank, .incarnation = 1}; }

// Whether nobody holds a lock on `path` (and it exists).
inline bool is_free(const std::string& path) {
  const auto fd = open_file(path, O_RDWR);
  return fd && ::flock(fd->get(), LOCK_EX | LOCK_NB) == 0;
}
inline bool is_held(const std::string& path) { return ::access(path.c_str(), F_OK) == 0 && !is_free(path); }

class LocalWorld {
 public:
  explicit LocalWorld(bool namespaces = true, std::string user = "", std::string runner = MUSTER_TEST_RUNNER)
      : options_(settings(namespaces, std::move(user), std::move(runner))) {
    // The job's user must be able to pass the folder above the data directory, as it must in real life.
    MUSTER_ASSERT(::chmod(dir_.path().c_str(), 0755) == 0);
    restart();
  }
  ~LocalWorld() {
    engine_.reset();
    static_cast<void>(kill_all(run(), Millis{0}));
    static_cast<void>(remove_tree(data()));
  }

  LocalEngine& engine() { return *engine_; }
  const Options& options() const { return options_; }
  std::string data() const { return dir_ / "data"; }
  std::string run() const { return data() + "/run"; }
  std::string folder(const domain::LaunchId& id) const { return run() + "/" + to_string(id); }
  std::string scratch(std::string_view name) const { return dir_ / name; }  // outside the data directory

  void restart() {
    engine_.reset();
    auto made = LocalEngine::create(options_);
    MUSTER_ASSERT(made);
    engine_ = *std::move(made);
    engine_->on_exit([this](const ports::NodeExit& exit) {
      const std::lock_guard lock(mutex_);
      exits_[exit.id].push_back(exit.message);
      changed_.notify_all();
    });
  }

  domain::GangLaunch gang(domain::AttemptId attempt, int ranks,
                          const std::vector<std::string>& command) const {
    auto gang = contract::gang_on_first_nodes(attempt, ranks);
    for (auto& launch : gang.nodes) {
      launch.workload.job_name = "demo";
      launch.workload.image = "muster/host";
      launch.workload.program = "host";
      launch.workload.instance_type = "ml.c5.xlarge";
      launch.workload.entrypoint = command;
    }
    return gang;
  }

  int exits(const domain::LaunchId& id) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(exits_[id].size());
  }
  // The message of the launch's first exit; empty when there is none within 20 s.
  std::string await_exit(const domain::LaunchId& id) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds{20}, [&] { return !exits_[id].empty(); });
    return exits_[id].empty() ? "" : exits_[id].front();
  }
  bool wait(const std::function<bool()>& done) {
    for (int i = 0; i < 4000; ++i) {
      if (done()) return true;
      ::usleep(5000);
    }
    return done();
  }

 private:
  Options settings(bool namespaces, std::string user, std::string runner) const {
    return {.data_directory = dir_ / "data",
            .runner_program = std::move(runner),
            .endpoint_url = "http://127.0.0.1:9999",
            .nodes = 3,
            .user = std::move(user),
            .namespaces = namespaces};
  }

  TempDir dir_;
  Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<domain::LaunchId, std::vector<std::string>> exits_;
  std::unique_ptr<LocalEngine> engine_;
};

}  // namespace muster::engine::local
