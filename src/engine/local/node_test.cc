// What a job sees and can do inside a node, and what is left of it afterwards. ./test runs this as root and
// again as a normal user.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "engine/local/testing/local_world.h"

namespace muster::engine::local {
namespace {

struct Said {
  std::string exit;
  std::string out;
};

// Runs a script as the job of rank 0 of a gang with one rank, and answers what it printed.
Said run(LocalWorld& world, const std::string& script, std::uint64_t attempt = 1) {
  auto gang = world.gang(domain::AttemptId{attempt}, 1, {"shell", "exec > /opt/ml/out 2>&1; " + script});
  const auto launched = world.engine().launch(gang);
  if (!launched) return {launched.error().message, ""};
  const auto id = gang.nodes[0].id;
  auto exit = world.await_exit(id);
  return {std::move(exit), read_file(world.folder(id) + "/ml/out").value_or("nothing printed")};
}

std::set<std::string> names(const std::string& path) {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    out.insert(entry.path().filename().string());
  return out;
}

// Data directories hold more than run/: keys, another job's folder.
void plant_secrets(const LocalWorld& world) {
  // Only the cover stands between them and another user.
  ASSERT_EQ(::chmod(world.data().c_str(), 0755), 0);
  ASSERT_OK(make_directories(world.data() + "/keys"));
  ASSERT_OK(write_file_atomic(world.data() + "/keys/master", "the-key-of-the-house", 0644));
  ASSERT_OK(make_directories(world.run() + "/a99-r0-i1"));
  ASSERT_OK(write_file_atomic(world.run() + "/a99-r0-i1/pid", "2 1", 0644));
}

TEST(Node, HasItsOwnNameHostsAndFolders) {
  LocalWorld world;
  const auto said =
      run(world,
          "hostname; getent hosts algo-1; pwd; echo $HOME; touch $HOME/x /opt/ml/y && echo writable; "
          "stat -c %U /opt/ml/out; ls /proc | grep -c '^[0-9]'");
  EXPECT_EQ(said.exit, "runner ended with code 0");
  EXPECT_NE(said.out.find("algo-1\n" + world.engine().inventory()->nodes[0].address), std::string::npos)
      << said.out;
  EXPECT_NE(said.out.find("writable"), std::string::npos) << said.out;
  const auto last = split(trim(said.out), '\n').back();
  EXPECT_LT(parse_int(last).value_or(999), 10) << "the machine's processes are seen: " << said.out;
}

TEST(Node, LeavesTheMachinesOptUntouched) {
  const auto before = names("/opt");
  LocalWorld world;
  const auto said = run(world, "ls /opt; touch /opt/ml/z");
  EXPECT_EQ(said.exit, "runner ended with code 0");
  EXPECT_EQ(names("/opt"), before);
  auto seen = std::set<std::string>();
  for (const auto line : split(trim(said.out), '\n')) seen.emplace(line);
  auto expected = before;
  expected.insert({"ml", "home"});
  EXPECT_EQ(seen, expected);
}

TEST(Node, OnADiskAndNotInMemory) {
  LocalWorld world;
  const auto said = run(world, "stat -f -c %T /opt/ml");
  EXPECT_EQ(said.out.find("tmpfs"), std::string::npos) << said.out;
}

TEST(Node, AJobCannotReadTheServicesKeys) {
  LocalWorld world;
  plant_secrets(world);
  const auto data = world.data();
  const auto token = world.folder(launch_id(0)) + "/token";
  const auto said =
      run(world, "cat " + data + "/keys/master; cat " + token + "; ls -A " + data +
                     " | wc -l; "
                     "umount " +
                     data + "; umount -l " + data + "; cat " + data +
                     "/keys/master; "
                     "cat /proc/1/root" +
                     data +
                     "/keys/master; cat /proc/1/fd/*/token /proc/self/fd/*/token; cat /proc/1/environ; "
                     "unshare -rm sh -c 'umount " +
                     data + "; cat " + data +
                     "/keys/master'; "
                     "unshare -m sh -c 'umount " +
                     data + "; cat " + data +
                     "/keys/master'; "
                     "mkdir /opt/ml/m; mount --bind / /opt/ml/m; cat /opt/ml/m" +
                     data +
                     "/keys/master; "
                     "unshare -rm sh -c 'mount --bind / /opt/ml/m; cat /opt/ml/m" +
                     data + "/keys/master'; echo end");
  EXPECT_EQ(said.exit, "runner ended with code 0");
  EXPECT_EQ(said.out.find("the-key-of-the-house"), std::string::npos) << said.out;
  EXPECT_EQ(said.out.find("secret-of-rank-0"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("end"), std::string::npos);
  EXPECT_EQ(read_file(data + "/keys/master"), "the-key-of-the-house");  // the machine still sees it
}

TEST(Node, AJobThatRunsAsRootCannotUncoverThemEither) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may run jobs as root";
  LocalWorld world(true, "root");
  plant_secrets(world);
  const auto data = world.data();
  const auto said = run(world, "id -u; umount " + data + "; cat " + data + "/keys/master; cat /proc/1/root" +
                                   data + "/keys/master; unshare -m sh -c 'umount " + data + "; cat " + data +
                                   "/keys/master'; "
                                   "nsenter -t 1 -m cat " +
                                   data + "/keys/master; echo end");
  EXPECT_TRUE(said.out.starts_with("0\n")) << said.out;
  EXPECT_EQ(said.out.find("the-key-of-the-house"), std::string::npos) << said.out;
}

TEST(Node, JobsOfRootRunAsAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may change users";
  LocalWorld world(true, "nobody");
  const auto said = run(world,
                        "id -u; id -G; grep CapEff /proc/self/status; touch /etc/muster-was-here; "
                        "echo x > /opt/ml/mine; stat -c %U /opt/ml/mine");
  EXPECT_TRUE(said.out.starts_with("65534\n65534\n")) << said.out;
  EXPECT_NE(said.out.find("CapEff:\t0000000000000000"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("nobody"), std::string::npos) << said.out;
  EXPECT_NE(::access("/etc/muster-was-here", F_OK), 0);
}

// Programs of root below a folder of root, as in a clone below /root.
class ProgramsInAClosedFolder : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may change users";
    namespace fs = std::filesystem;
    fs::create_directories(bin());
    ASSERT_EQ(::chmod(bin().c_str(), 0755), 0);
    fs::copy_file(MUSTER_TEST_RUNNER, bin() + "/muster-runner");
    fs::copy_file("/bin/cat", bin() + "/muster-train");
    ASSERT_OK(write_file_atomic(closed_ / "secret", "of root", 0644));
    ASSERT_EQ(::chmod(closed_.path().c_str(), 0700), 0);
  }
  std::string bin() const { return closed_ / "clone/bin"; }

  TempDir closed_;
};

TEST_F(ProgramsInAClosedFolder, AreReachedByJobsAndNothingElseIs) {
  LocalWorld world(true, "", bin() + "/muster-runner");
  const auto inventory = world.engine().inventory();
  EXPECT_EQ(join(inventory->not_isolated, "\n").find("unprivileged user"), std::string::npos);
  EXPECT_NE(join(inventory->isolation, "\n").find(bin()), std::string::npos);
  const auto said = run(world, "id -u; echo started | " + bin() + "/muster-train; ls " + closed_.path() +
                                   "; cat " + closed_ / "secret" + "; touch " + closed_ / "mine");
  EXPECT_TRUE(said.out.starts_with("65534\nstarted\nclone\n")) << said.out;
  EXPECT_EQ(said.out.find("of root"), std::string::npos) << said.out;
  EXPECT_NE(::access((closed_ / "mine").c_str(), F_OK), 0);
}

TEST_F(ProgramsInAClosedFolder, AreRunAsRootWhenTheyAreClosedThemselves) {
  const auto said = [&](const std::string& what, mode_t mode) {
    EXPECT_EQ(::chmod(what.c_str(), mode), 0);
    LocalWorld world(true, "", bin() + "/muster-runner");
    return join(world.engine().inventory()->not_isolated, "\n");
  };
  EXPECT_NE(said(bin(), 0700).find(bin() + " is closed to others"), std::string::npos);
  EXPECT_EQ(said(bin(), 0755).find("unprivileged user"), std::string::npos);
  EXPECT_NE(said(bin() + "/muster-train", 0700).find("cannot start " + bin() + "/muster-train"),
            std::string::npos);
}

TEST(Node, IsInTheControlGroupsThatAreInForce) {
  LocalWorld world;
  const auto in_force = join(world.engine().inventory()->isolation, "\n");
  const auto said = run(world, "cat /proc/self/cgroup");
  const bool limited = in_force.find("memory limit") != std::string::npos;
  EXPECT_EQ(said.out.find("/node-1") != std::string::npos, limited) << in_force << said.out;
}

TEST(Node, LeavesNoControlGroupBehind) {
  std::string noted;
  {
    LocalWorld world;
    ASSERT_OK(world.engine().launch(world.gang(kAttempt, 2, {"stay"})));
    noted = read_file(world.run() + "/cgroups").value_or("");
    for (const auto group : split(trim(noted), '\n')) {
      EXPECT_TRUE(group.empty() || std::filesystem::exists(group)) << group;
    }
  }  // the engine goes while the jobs run, then kill_all ends them
  for (const auto group : split(trim(noted), '\n')) {
    EXPECT_TRUE(group.empty() || !std::filesystem::exists(group)) << group;
  }
}

TEST(Node, ProcessesThatFledDieWithTheRunner) {
  LocalWorld world;
  const auto lock = world.scratch("lock");
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 1, {"orphan", lock, "and end"})));
  EXPECT_EQ(world.await_exit(launch_id(0)), "runner ended with code 0");
  EXPECT_TRUE(is_free(lock));
}

TEST(Node, ProcessesThatFledDieWithAKilledRunner) {
  LocalWorld world;
  const auto lock = world.scratch("lock");
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 1, {"orphan", lock})));
  ASSERT_TRUE(world.wait([&] { return is_held(lock); }));
  const auto process = read_pid(world.folder(launch_id(0)));
  ASSERT_TRUE(process.has_value());
  ASSERT_EQ(::kill(process->pid, SIGKILL), 0);
  EXPECT_EQ(world.await_exit(launch_id(0)), "runner killed by signal 9");
  EXPECT_TRUE(is_free(lock));  // posted only when all of the node is gone
}

TEST(Node, KillAllNeedsNoEngine) {
  LocalWorld world;
  const auto lock = world.scratch("lock");
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 2, {"stubborn"})));
  auto gang = world.gang(domain::AttemptId{2}, 1, {"orphan", lock});
  ASSERT_OK(world.engine().launch(gang));
  ASSERT_TRUE(world.wait([&] { return is_held(lock); }));
  const auto killed = kill_all(world.run(), Millis{0});
  ASSERT_OK(killed);
  EXPECT_EQ(*killed, 3);
  EXPECT_TRUE(is_free(lock));
  // The engine, if one lives, first ships what they left; then nothing is there.
  EXPECT_NE(world.await_exit(launch_id(0)), "");
  EXPECT_NE(world.await_exit(launch_id(1)), "");
  EXPECT_NE(world.await_exit(gang.nodes[0].id), "");
  EXPECT_EQ(kill_all(world.run(), Millis{0}).value_or(-1), 0);
}

TEST(Node, LeavesNoMountBehind) {
  const auto mounts = [] { return read_file("/proc/self/mounts").value_or(""); };
  const auto before = mounts();
  LocalWorld world;
  ASSERT_OK(world.engine().launch(world.gang(kAttempt, 2, {"stay"})));
  EXPECT_EQ(mounts(), before);
}

}  // namespace
}  // namespace muster::engine::local
