// The local engine with the real muster-runner, against a fake control plane: what a job sees inside its
// node.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include "base/file.h"
#include "base/text.h"
#include "engine/local/local_engine.h"
#include "engine/local/run_folder.h"
#include "runner/testing/fake_control.h"

namespace muster {
namespace {

using runner::testing::FakeControl;
namespace local = engine::local;

class NodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::permissions(data_.path(), std::filesystem::perms(0755));
    local::Options options;
    options.data_directory = data_.path();
    options.runner_program = MUSTER_RUNNER;
    options.endpoint_url = control_.url();
    auto engine = local::LocalEngine::create(options);
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = *std::move(engine);
    engine_->on_exit([this](const ports::NodeExit& exit) {
      const std::lock_guard lock(mutex_);
      exits_.push_back(exit.message);
      changed_.notify_all();
    });
    const auto inventory = engine_->inventory();
    ASSERT_TRUE(inventory);
    for (const auto& what : inventory->isolation)
      isolated_ = isolated_ || what.find("mount") != std::string::npos;
    if (!isolated_) GTEST_SKIP() << "no namespaces on this machine";
  }
  void TearDown() override { (void)local::kill_all(data_ / "run", Millis{0}); }

  void launch(const std::string& script) {
    domain::GangLaunch gang;
    gang.attempt = {1};
    for (int rank = 0; rank < 2; ++rank) {
      domain::NodeLaunch node;
      node.id = {{1}, rank, 1};
      node.world = 2;
      node.node = "node-" + std::to_string(rank + 1);
      node.attempt_created = Time{1};
      node.workload.job_name = "demo";
      node.workload.job_arn = "arn:aws:sagemaker:us-east-1:000000000000:training-job/demo";
      node.workload.region = "us-east-1";
      node.workload.program = "host";
      node.workload.instance_type = "ml.m5.large";
      node.workload.entrypoint = {"/bin/bash", "-c", script};
      node.workload.grace = Millis{1'000};
      gang.nodes.push_back(std::move(node));
      gang.runner_tokens.emplace_back("secret");
    }
    const auto launched = engine_->launch(gang);
    ASSERT_TRUE(launched) << launched.error().message;
  }
  bool wait_for_exits(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return exits_.size() >= count; });
  }

  TempDir data_;
  FakeControl control_{2};
  std::unique_ptr<local::LocalEngine> engine_;
  bool isolated_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> exits_;
};

TEST_F(NodeTest, two_ranks_in_their_nodes) {
  launch(
      "echo host $(hostname) pid1 $(cat /proc/1/comm); getent hosts algo-1 algo-2 | tr -s ' ';"
      "touch /opt/ml/model/x /opt/ml/output/data/x /opt/ml/input/x /opt/ml/checkpoints/x && echo writable;"
      "ls /opt/ml/input/config; cat " +
      data_.path() +
      "/run/*/token 2>/dev/null; cat /proc/1/environ 2>/dev/null;"
      "touch $HOME/x && echo home; [ -e /proc/self/fd/3 ] && echo leak; echo id $(id -u)");
  ASSERT_TRUE(wait_for_exits(2));
  const auto nodes = engine_->inventory()->nodes;
  const auto hosts = nodes[0].address + " algo-1\n" + nodes[1].address + " algo-2\n";
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(control_.phases(rank), "ready running exited uploading uploaded finished");
    const auto text = control_.text(rank);
    const auto name = domain::host_name(rank);
    for (const auto& wanted :
         {"host " + name + " pid1 muster-runner\n", hosts, std::string("writable\n"), std::string("home\n"),
          std::string("hyperparameters.json\ninputdataconfig.json\nresourceconfig.json\n")}) {
      EXPECT_NE(text.find(wanted), std::string::npos) << "missing " << wanted << " in:\n" << text;
    }
    EXPECT_EQ(text.find("secret"), std::string::npos) << text;
    EXPECT_EQ(text.find("leak"), std::string::npos) << text;
    EXPECT_EQ(control_.exit_of(rank).exit_code, 0);
  }
  std::printf("%s", control_.text(0).c_str());
  std::printf("order to run -> first line acknowledged: %.1f ms\n",
              static_cast<double>(control_.first_line_ns - control_.run_sent_ns) / 1e6);
}

TEST_F(NodeTest, a_killed_runner_leaves_no_process_and_no_line_behind) {
  launch("(setsid sleep 12345 &); echo up; sleep 12345");
  ASSERT_TRUE(control_.wait_for_line("up", 0) && control_.wait_for_line("up", 1));
  ASSERT_EQ(local::kill_all(data_ / "run", Millis{0}).value_or(0), 2);
  ASSERT_TRUE(wait_for_exits(2));
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto line = read_file(entry.path().string() + "/cmdline").value_or("");
    EXPECT_EQ(line.find(std::string("sleep\0"
                                    "12345",
                                    11)),
              std::string::npos)
        << entry.path();
  }
}

TEST_F(NodeTest, stop_of_the_engine_is_a_clean_end) {
  launch("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done");
  ASSERT_TRUE(control_.wait_for_line("up", 0) && control_.wait_for_line("up", 1));
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(engine_->stop({{1}, rank, 1}, Millis{10'000}));
  ASSERT_TRUE(wait_for_exits(2));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(control_.text(rank).find("bye"), std::string::npos) << control_.text(rank);
    EXPECT_EQ(control_.exit_of(rank).cause, domain::Cause::infrastructure);
  }
}

}  // namespace
}  // namespace muster
