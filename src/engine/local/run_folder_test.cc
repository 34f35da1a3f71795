#include "engine/local/run_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/local/handshake.h"
#include "engine/local/probe.h"

namespace muster::engine::local {
namespace {

TEST(ProcessRef, IsItselfAndNobodyElse) {
  const auto self = process_ref(::getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_TRUE(open_process(*self).has_value());
  const auto reused = open_process({.pid = self->pid, .start = self->start + 1});
  ASSERT_FALSE(reused.has_value());
  EXPECT_EQ(reused.error().code, ErrorCode::not_found);
  EXPECT_FALSE(process_ref(0x7ffffff0).has_value());
}

TEST(RunFolder, PidRoundTripsAndRubbishIsNoProcess) {
  const TempDir dir;
  const ProcessRef process{.pid = 4711, .start = 99};
  ASSERT_TRUE(write_pid(dir.path(), process).has_value());
  EXPECT_EQ(read_pid(dir.path()), process);
  for (const auto* bad : {"", "4711", "4711 x", "-1 5", "0 5", "1 5", "4711 5 6", "99999999999 5"}) {
    ASSERT_TRUE(put_file(dir / "pid", bad, 0600).has_value());
    EXPECT_FALSE(read_pid(dir.path()).has_value()) << bad;
  }
}

TEST(RunFolder, LockIsExclusiveAndLookingDoesNotTakeIt) {
  const TempDir dir;
  EXPECT_FALSE(is_locked(dir.path()));
  {
    const auto lock = take_lock(dir.path());
    ASSERT_TRUE(lock.has_value());
    EXPECT_TRUE(is_locked(dir.path()));
    const auto second = take_lock(dir.path());
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::failed_precondition);
  }
  EXPECT_FALSE(is_locked(dir.path()));
}

TEST(RunFolder, ListsLaunchesOnly) {
  const TempDir dir;
  for (const auto* name : {"a2-r0-i1", "a1-r1-i1", "a1-r0-i2", ".trash-a1-r0-i1", "notes", "a1-r0"}) {
    ASSERT_EQ(::mkdir((dir / name).c_str(), 0700), 0);
  }
  const auto found = list_launches(dir.path());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(to_string(found[0]), "a1-r0-i2");
  EXPECT_EQ(to_string(found[2]), "a2-r0-i1");
  EXPECT_TRUE(list_launches(dir / "missing").empty());
  EXPECT_TRUE(killed_launches(dir.path()).empty());
  ASSERT_TRUE(put_file(dir / "a1-r1-i1/killed", "", 0600));
  ASSERT_EQ(killed_launches(dir.path()).size(), 1U);
  EXPECT_EQ(to_string(killed_launches(dir.path())[0]), "a1-r1-i1");
  EXPECT_EQ(kill_all(dir.path(), Millis{0}).value_or(-1), 0);
}

// Processes that hold a launch's lock say which they are only when they run: on a loaded machine that is
// late.
TEST(RunFolder, AHolderThatIsSlowToSayWhoItIsIsKilled) {
  const TempDir dir;
  const auto folder = dir / "a1-r0-i1";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_TRUE(write_pid(folder, {.pid = 0x7ffffff0, .start = 1}));  // of the runner that died before
  auto lock = take_lock(folder);
  ASSERT_TRUE(lock);
  const auto child = ::fork();
  if (child == 0) {
    ::usleep(500'000);
    if (!write_pid(folder, *process_ref(::getpid()))) ::_exit(1);
    for (;;) ::pause();
  }
  lock->reset();
  const auto killed = kill_all(dir.path(), Millis{0});
  int status = 0;
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(killed) << killed.error().message;
  EXPECT_EQ(*killed, 1);
}

TEST(NodePlan, RoundTrips) {
  NodePlan plan;
  plan.data_directory = "/var/lib/a \"b\"";
  plan.host_name = "algo-3";
  plan.user = {
      .change = true, .uid = 65534, .gid = 12, .groups = {12, 4000000000U}, .name = "nobody", .home = "/x"};
  plan.cgroups = {"/sys/fs/cgroup/a", "/sys/fs/cgroup/b"};
  plan.reach = {"/root/muster/bin"};
  plan.trials = {"/opt/muster-train"};
  const auto back = decode_node_plan(encode(plan));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(encode(*back), encode(plan));
  EXPECT_EQ(back->user.groups[1], 4000000000U);
  for (
      const auto* bad :
      {"", "{}", "[]", R"({"probe":false,"isolate":true,"data_directory":"/","host_name":"a"})",
       R"({"probe":false,"isolate":true,"data_directory":"/","host_name":"a","user":{"change":true,"uid":-1,"gid":0,"groups":[],"name":"","home":""},"cgroups":[]})"}) {
    EXPECT_FALSE(decode_node_plan(bad).has_value()) << bad;
  }
}

TEST(NodeReport, RoundTrips) {
  const NodeReport report{.error = "unshare: refused",
                          .remedy = "sysctl",
                          .in_force = {"a"},
                          .missing = {"b", "c"},
                          .reach = {"/root/muster/bin"},
                          .not_startable = "d"};
  const auto back = decode_node_report(encode(report));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(encode(*back), encode(report));
  EXPECT_FALSE(decode_node_report("{\"error\":\"\"}").has_value());
}

TEST(HostsFile, NamesTheGangAndNoOther) {
  const auto text = hosts_file({"127.77.0.1 algo-1", "127.77.0.2 algo-2"});
  EXPECT_NE(text.find("127.77.0.1 algo-1\n127.77.0.2 algo-2\n"), std::string::npos);
  EXPECT_EQ(text.find("algo-3"), std::string::npos);
}

}  // namespace
}  // namespace muster::engine::local
