// The contract suite on the local engine, and what only the local engine promises.
#include "engine/local/local_engine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "engine/contract/engine_contract.h"
#include "engine/local/doctor.h"
#include "engine/local/machine.h"
#include "engine/local/testing/local_world.h"
#include "wire/runner/messages.h"

namespace muster::engine::contract {
namespace {

class LocalSubject final : public Subject {
 public:
  ports::Engine& engine() override { return world_.engine(); }
  domain::GangLaunch gang(domain::AttemptId attempt, int ranks, Conduct conduct) override {
    switch (conduct) {
      case Conduct::stays:
        return world_.gang(attempt, ranks, {"stay"});
      case Conduct::stubborn:
        return world_.gang(attempt, ranks, {"stubborn"});
      case Conduct::ends:
        return world_.gang(attempt, ranks, {"end", "0"});
      case Conduct::fails:
        return world_.gang(attempt, ranks, {"end", "3"});
    }
    return {};
  }
  domain::GangLaunch broken_gang(domain::AttemptId attempt) override {
    auto gang = world_.gang(attempt, 3, {"stay"});
    // A file where the last rank's folder must be.
    EXPECT_TRUE(put_file(gang.nodes[2].id));
    return gang;
  }
  void kill_runner(const domain::LaunchId& id) override {
    const auto process = local::read_pid(world_.folder(id));
    ASSERT_TRUE(process.has_value());
    ASSERT_EQ(::kill(process->pid, SIGKILL), 0);
  }
  int exits(const domain::LaunchId& id) override { return world_.exits(id); }
  bool wait(const std::function<bool()>& done) override { return world_.wait(done); }
  void restart() override { world_.restart(); }

 private:
  bool put_file(const domain::LaunchId& id) {
    return local::put_file(world_.folder(id), "", 0600).has_value();
  }
  local::LocalWorld world_;
};

INSTANTIATE_TEST_SUITE_P(Local, EngineContract,
                         testing::Values(MakeSubject([] { return std::make_unique<LocalSubject>(); })));

}  // namespace
}  // namespace muster::engine::contract

namespace muster::engine::local {
namespace {

TEST(LocalEngine, CutsTheMachineIntoNodesWithAddresses) {
  LocalWorld world;
  const auto inventory = world.engine().inventory();
  ASSERT_OK(inventory);
  ASSERT_EQ(inventory->nodes.size(), 3U);
  EXPECT_EQ(inventory->nodes[0].name, "node-1");
  EXPECT_EQ(inventory->nodes[2].address, loopback_network(world.data()) + "3");
  EXPECT_FALSE(inventory->isolation.empty());
  for (const auto& line : inventory->isolation) std::printf("in force: %s\n", line.c_str());
  for (const auto& line : inventory->not_isolated) std::printf("not: %s\n", line.c_str());
}

TEST(LocalEngine, TellsTheRunnerAllAboutItsNode) {
  LocalWorld world;
  auto gang = world.gang(kAttempt, 2, {"stay"});
  gang.nodes[1].notice = "Before.";
  ASSERT_OK(world.engine().launch(gang));
  const auto text = read_file(world.folder(launch_id(1)) + "/launch.json");
  ASSERT_OK(text);
  const auto launch = wire::decode_node_launch(*text);
  ASSERT_OK(launch);
  EXPECT_EQ(launch->endpoint_url, "http://127.0.0.1:9999");
  const auto network = loopback_network(world.data());
  EXPECT_EQ(launch->address, network + "2");
  EXPECT_EQ(launch->interface, "lo");
  EXPECT_EQ(launch->credentials_uri, "http://127.0.0.1:0/credentials");
  ASSERT_EQ(launch->hosts.size(), 2U);
  EXPECT_EQ(launch->hosts[0].name, "algo-1");
  EXPECT_EQ(launch->hosts[0].address, network + "1");
  EXPECT_TRUE(launch->notice.starts_with("Before. ml.c5.xlarge is rehearsed on local node node-2: "))
      << launch->notice;
  EXPECT_EQ(read_file(world.folder(launch_id(1)) + "/token"), "secret-of-rank-1");
  struct stat info {};
  for (const auto* name : {"/token", "/launch.json"}) {
    ASSERT_EQ(::stat((world.folder(launch_id(1)) + name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U) << name;
  }
}

TEST(LocalEngine, AGangThatFailedMayBeLaunchedAgain) {
  LocalWorld world;
  const auto gang = world.gang(kAttempt, 3, {"stay"});
  ASSERT_OK(put_file(world.folder(launch_id(2)), "in the way", 0600));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(world.engine().launch(gang).has_value());
    EXPECT_EQ(list_launches(world.run()).size(), 1U) << "only what is in the way stays";
  }
  ASSERT_EQ(::unlink(world.folder(launch_id(2)).c_str()), 0);
  ASSERT_OK(world.engine().launch(gang));
  EXPECT_EQ(world.engine().observe()->size(), 3U);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(is_locked(world.folder(launch_id(rank))));
}

TEST(LocalEngine, RefusesWhatItCannotPlace) {
  LocalWorld world;
  auto gang = world.gang(kAttempt, 2, {"stay"});
  gang.nodes[1].node = "node-9";
  const auto launched = world.engine().launch(gang);
  ASSERT_FALSE(launched.has_value());
  EXPECT_EQ(launched.error().message, "there is no node 'node-9': this engine has node-1 to node-3");
  gang = world.gang(kAttempt, 2, {"stay"});
  gang.runner_tokens.pop_back();
  EXPECT_FALSE(world.engine().launch(gang).has_value());
  EXPECT_TRUE(list_launches(world.run()).empty());
}

TEST(LocalEngine, OptionsAreChecked) {
  LocalWorld world;
  const auto refused = [&](auto change, const std::string& part) {
    auto options = world.options();
    change(options);
    const auto made = LocalEngine::create(options);
    ASSERT_FALSE(made.has_value()) << part;
    EXPECT_NE(made.error().message.find(part), std::string::npos) << made.error().message;
  };
  refused([](Options& o) { o.nodes = 0; }, "may be 1 to 250");
  refused([](Options& o) { o.nodes = 251; }, "may be 1 to 250");
  refused([](Options& o) { o.runner_program = "/nowhere/muster-runner"; }, "/nowhere/muster-runner");
  refused([](Options& o) { o.runner_program = "/bin/true"; }, "ended before its node was made");
  refused([](Options& o) { o.user = "no-such-user"; }, ::geteuid() == 0 ? "no such user" : "only root");
  refused([](Options& o) { o.data_directory = "/proc/data"; }, "/proc/data");
  refused(
      [](Options& o) {
        o.data_directory =
            std::string(MUSTER_TEST_RUNNER).substr(0, std::string(MUSTER_TEST_RUNNER).rfind('/'));
      },
      "in the data directory");
}

TEST(LocalEngine, ShipsTheSpoolOfARunnerThatDiedBeforeItSaysSo) {
  LocalWorld world;
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 1, {"end", "3"})));
  EXPECT_EQ(world.await_exit(launch_id(0)), "runner ended with code 3");
  EXPECT_EQ(read_file(world.folder(launch_id(0)) + "/shipped"), "yes");
}

TEST(LocalEngine, DoesNotShipAfterAFinalReport) {
  LocalWorld world;
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 1, {"end", "0"})));
  EXPECT_EQ(world.await_exit(launch_id(0)), "runner ended with code 0");
  EXPECT_FALSE(read_file(world.folder(launch_id(0)) + "/shipped").has_value());
}

TEST(LocalEngine, ShipsWhatDiedWhileMusterdWasAway) {
  LocalWorld world;
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 1, {"stay"})));
  const auto process = read_pid(world.folder(launch_id(0)));
  ASSERT_TRUE(process.has_value());
  // A second musterd's engine would find the folder so: its process gone, no word left.
  ASSERT_OK(put_file(world.folder(launch_id(0)) + "/keep", "", 0600));
  ASSERT_EQ(::kill(process->pid, SIGKILL), 0);
  EXPECT_NE(world.await_exit(launch_id(0)).find("not shipped"), std::string::npos);
  ASSERT_EQ(::unlink((world.folder(launch_id(0)) + "/keep").c_str()), 0);
  world.restart();
  EXPECT_TRUE(world.wait([&] { return world.exits(launch_id(0)) == 2; }));
  EXPECT_EQ(read_file(world.folder(launch_id(0)) + "/shipped"), "yes");
}

TEST(LocalEngine, KeepsTheFolderUntilTheSpoolIsShipped) {
  LocalWorld world;
  const auto folder = world.folder(launch_id(0));
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 1, {"stubborn"})));
  ASSERT_OK(put_file(folder + "/keep", "", 0600));
  const auto refused = world.engine().release(launch_id(0));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
  EXPECT_NE(refused.error().message.find("could not be shipped"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(::access(folder.c_str(), F_OK), 0);
  ASSERT_EQ(::unlink((folder + "/keep").c_str()), 0);
  ASSERT_OK(world.engine().release(launch_id(0)));
  EXPECT_NE(::access(folder.c_str(), F_OK), 0);
  EXPECT_EQ(world.exits(launch_id(0)), 1);
}

TEST(LocalEngine, ReleaseDeletesFoldersThatAJobClosed) {
  LocalWorld world;
  ASSERT_OK(world.engine().launch(world.gang(
      kAttempt, 1,
      {"shell",
       "mkdir -p /opt/ml/a/b/c && touch /opt/ml/a/b/c/d && chmod 0 /opt/ml/a/b && chmod 0500 /opt/ml/a"})));
  EXPECT_EQ(world.await_exit(launch_id(0)), "runner ended with code 0");
  ASSERT_OK(world.engine().release(launch_id(0)));
  EXPECT_TRUE(list_launches(world.run()).empty());
}

TEST(LocalEngine, LeftoversOfAPreparedLaunchAreNotARunningOne) {
  LocalWorld world;
  ASSERT_OK(make_directories(world.folder(launch_id(0)) + "/ml"));
  ASSERT_OK(make_directories(world.run() + "/.trash-a9-r0-i1/ml"));
  world.restart();
  EXPECT_TRUE(world.engine().observe()->empty());
  EXPECT_NE(::access((world.run() + "/.trash-a9-r0-i1").c_str(), F_OK), 0);
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 1, {"stay"})));
  EXPECT_TRUE(world.engine().observe()->front().alive);
}

TEST(LocalEngine, WithoutNamespacesOnlyBuiltInProgramsRun) {
  LocalWorld world(false);
  const auto inventory = world.engine().inventory();
  ASSERT_OK(inventory);
  EXPECT_NE(inventory->not_isolated[0].find("only muster/train and muster/data run"), std::string::npos);
  auto gang = world.gang(kAttempt, 2, {"orphan", world.scratch("lock")});
  const auto refused = world.engine().launch(gang);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_NE(refused.error().message.find("namespaces"), std::string::npos) << refused.error().message;
  gang.nodes.pop_back();
  gang.runner_tokens.pop_back();
  gang.nodes[0].workload.program = "data";
  ASSERT_OK(world.engine().launch(gang));
  // Also here no process stays behind: the outer process reaps what the runner left.
  EXPECT_TRUE(world.wait([&] { return is_held(world.scratch("lock")); }));
  ASSERT_OK(world.engine().stop(launch_id(0), Millis{60'000}));
  EXPECT_EQ(world.await_exit(launch_id(0)), "runner ended with code 0");
  EXPECT_TRUE(is_free(world.scratch("lock")));
}

TEST(LocalEngine, DoctorSaysWhatIsInForce) {
  LocalWorld world;
  const auto checks = doctor(world.options());
  ASSERT_FALSE(checks.empty());
  EXPECT_EQ(checks[0].name, "namespaces");
  EXPECT_EQ(checks[0].state, Check::State::ok);
  for (const auto& check : checks) EXPECT_FALSE(check.message.empty()) << check.name;
  auto options = world.options();
  options.namespaces = false;
  EXPECT_EQ(doctor(options)[0].state, Check::State::warn);
  options.nodes = -1;
  EXPECT_EQ(doctor(options)[0].state, Check::State::fail);
}

TEST(LocalEngine, StartsAGangInAFewMilliseconds) {
  LocalWorld world;
  std::vector<double> times;
  for (std::uint64_t attempt = 1; attempt <= 12; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_OK(world.engine().launch(world.gang(domain::AttemptId{attempt}, 2, {"stay"})));
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  std::printf("launch of 2 nodes: best %.1f ms, median %.1f ms\n", times.front(), times[times.size() / 2]);
  EXPECT_LT(times.front(), 1000.0);  // sanitizers and a busy machine included
}

}  // namespace
}  // namespace muster::engine::local
