// muster-train whose ranks are killed, stopped, or given what cannot work.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "apps/muster-train/test_program.h"
#include "base/text.h"
#include "train/agent/agent.h"
#include "train/ckpt/checkpoint.h"

namespace muster::train {
namespace {

// What only a rank can see, and is the caller's to mend, has the exit code of wrong arguments, too.
TEST_F(Program, ARankThatIsGivenTheWrongThingEndsAsWrongArgumentsDo) {
  const auto arguments = train_arguments(shared("train"), sets({"train.sequence=1000000"}));
  const auto run = finish(start(arguments + std::vector<std::string>{"--nproc", "2"}));
  EXPECT_EQ(run.code, 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("tokens, one window of 1000000 needs 1000001"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which begin with threads of their own
// There is no room for the stack of a thread: the standard library throws where the first save begins.
TEST_F(Program, WhatALibraryThrowsIsTheErrorOfARank) {
  const TempDir dir;
  std::vector<std::string> argv = {"/bin/sh", "-c", R"(ulimit -s 1000000000000 || exit 99; exec "$@")", "sh",
                                   MUSTER_TRAIN_PROGRAM};
  const auto arguments = train_arguments(
      shared("train"), sets({"train.steps=2", "checkpoint.every=1", "checkpoint.dir=" + dir / "ckpt"}));
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.insert(argv.end(), {"--rank", "0", "--store", "127.0.0.1:1"});  // as an agent starts it
  const auto child = spawn(argv);
  ASSERT_TRUE(child) << child.error().message;
  const auto run = finish(*child);
  if (run.code == 99) GTEST_SKIP() << "the limit of the stack cannot be raised here";
  EXPECT_EQ(run.code, kExitFailed) << run.out << run.err;
  EXPECT_THAT(run.err, testing::StartsWith("muster-train: rank 0: Resource temporarily unavailable"));
}
#endif

// The file of rank 1 cannot be opened before the test lets go of it.
TEST_F(Program, ADiskThatHangsIsNoLostPeer) {
  const TempDir dir;
  const std::string step = dir / "ckpt/step-1";
  ASSERT_TRUE(make_directories(step));
  ASSERT_TRUE(write_file_atomic(step + "/rank-1.bin", "old"));
  signal(SIGIO, SIG_IGN);
  const auto held = open_file(step + "/rank-1.bin", O_RDONLY);
  ASSERT_TRUE(held);
  if (fcntl(held->get(), F_SETLEASE, F_RDLCK) != 0) GTEST_SKIP() << "no file leases here";
  auto arguments = train_arguments(
      shared("train"),
      sets({"train.steps=2", "checkpoint.every=1", "run.timeout_s=2", "checkpoint.dir=" + dir / "ckpt"}));
  arguments.insert(arguments.end(), {"--nproc", "2"});
  const auto run = finish(start(arguments));
  EXPECT_EQ(run.code, kExitFailed) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rank 1: nothing was written for 2.0 s: the disk hangs"));
}

// One rank is killed in the middle; the same command goes on, and ends with the bits of a run without the
// fault.
TEST_F(Program, AKilledRankIsNamedAndTheRunGoesOnBitwise) {
  const TempDir out;
  const auto arguments = [&](const std::string& name) {
    return train_arguments(shared("train"), sets({"checkpoint.dir=" + out / name, "checkpoint.every=5",
                                                  "train.steps=120", "log.every=1"}) +
                                                std::vector<std::string>{"--nproc", "2"});
  };
  const Child agent = start(arguments("parts"));
  read_until(agent.out, "start ranks=2");
  std::vector<pid_t> ranks;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto pid = parse_int(entry.path().filename().string());
    if (!pid) continue;
    const auto stat = read_file("/proc/" + std::to_string(*pid) + "/stat", 1 << 16);
    if (!stat) continue;
    const auto fields = split(std::string_view(*stat).substr(stat->rfind(')') + 2), ' ');
    if (parse_int(fields[1]) == agent.pid) ranks.push_back(static_cast<pid_t>(*pid));
  }
  ASSERT_EQ(ranks.size(), 2u);
  const std::string said = read_until(agent.out, "checkpoint step=5 ");
  EXPECT_THAT(said, HasSubstr("step=5/120"));
  const auto begin = boot_time();
  kill(std::max(ranks[0], ranks[1]), SIGKILL);
  const auto broken = finish(agent);
  EXPECT_LT(boot_time() - begin, Millis(5000));
  EXPECT_EQ(broken.code, 128 + SIGKILL);
  EXPECT_THAT(broken.err, ContainsRegex("rank [01] was killed by signal 9 .Killed."));

  const auto again = finish(start(arguments("parts"))), whole = finish(start(arguments("whole")));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(again.out, ContainsRegex("resume step=[0-9]+ samples="));
  EXPECT_EQ(checksums(out / "parts/step-120"), checksums(out / "whole/step-120"));
}

// A second run in the folder ends before its first step; the first one goes on, and may be looked at. Killed,
// it leaves no lock behind.
TEST_F(Program, TwoRunsInOneFolderAreRefused) {
  const TempDir out;
  const auto arguments =
      train_arguments(shared("train"), sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=5",
                                             "train.steps=1000000", "log.every=1", "run.timeout_s=2"}) +
                                           std::vector<std::string>{"--nproc", "2"});
  const Child first = start(arguments);
  read_until(first.out, "checkpoint step=5 ");
  const auto second = finish(start(arguments));
  EXPECT_EQ(second.code, kExitFailed);
  EXPECT_THAT(second.err, HasSubstr("checkpoint.dir = " + out / "ckpt is in use by process "));
  EXPECT_THAT(second.out, HasSubstr("notice: checkpoint.dir = " + out / "ckpt is in use by process "));
  EXPECT_THAT(finish(start({"ckpt", "convert", out / "ckpt", out / "ckpt", "--step", "5"})).code,
              kExitFailed);
  EXPECT_EQ(finish(start({"ckpt", "ls", out / "ckpt"})).code, 0);
  kill(first.pid, SIGKILL);  // its ranks die with it
  EXPECT_EQ(finish(first).code, 128 + SIGKILL);
  const Child again = start(arguments);
  EXPECT_THAT(read_until(again.out, "loss="), HasSubstr("resume step="));
  kill(again.pid, SIGTERM);
  EXPECT_EQ(finish(again).code, kExitStopped);
}

// Nobody writes into the FIFO: reading it would take for ever.
TEST_F(Program, AFileOfAModelThatIsNoFileIsRefusedByName) {
  const TempDir out;
  ASSERT_TRUE(make_directories(out / "hf"));
  ASSERT_TRUE(write_file_atomic(out / "hf/model.safetensors", "12345678"));
  ASSERT_EQ(mkfifo((out / "hf/config.json").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((out / "fifo.mts").c_str(), 0600), 0);
  const std::string config = out / "hf/config.json is a FIFO; a regular file is needed";
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& says) {
    const auto run = finish(start(arguments));
    EXPECT_EQ(run.code, kExitUsage) << join(arguments, " ");
    EXPECT_THAT(run.err, HasSubstr(says)) << join(arguments, " ");
  };
  refused({"eval", "--model", out / "hf", "--data", shared("held-out")}, config);
  refused({"export", "--model", out / "hf", "--output", out / "x"}, config);
  refused(train_arguments(shared("train"), sets({"model.from=" + out / "hf"})), config);
  refused(train_arguments(out.path(), {}), out / "fifo.mts is a FIFO");
  refused({"plan", out / "fifo.mts", "--job-root", "/nonexistent"}, out / "fifo.mts is a FIFO");
}

TEST_F(Program, SigtermSavesAndStops) {
  const TempDir out;
  const auto arguments = train_arguments(
      shared("train"),
      sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=0", "train.steps=1000000", "log.every=1"}));
  {
    const Child agent = start(arguments + std::vector<std::string>{"--nproc", "2"});
    read_until(agent.out, "step=1/1000000");
    kill(agent.pid, SIGTERM);
    kill(agent.pid, SIGINT);  // so soon it is the same request
    const auto run = finish(agent);
    EXPECT_EQ(run.code, 75) << run.err;
    EXPECT_THAT(run.out, ContainsRegex("checkpoint step=[0-9]+ path="));
    EXPECT_THAT(run.out, ContainsRegex("stopped at step [0-9]+ of 1000000; start again to go on"));
  }
  const Child agent =
      start(arguments + std::vector<std::string>{"--nproc", "2"}, {{"TRAINING_JOB_NAME", "demo"}});
  EXPECT_THAT(read_until(agent.out, "resume step="), testing::Not(HasSubstr("step=1/")));
  read_until(agent.out, "loss=");
  kill(agent.pid, SIGTERM);
  const auto run = finish(agent);
  EXPECT_EQ(run.code, 0) << run.err;  // a job that was asked to stop has not failed
  EXPECT_THAT(run.out, HasSubstr("stopped at step"));
}

// Every step is saved, so each kill finds a save at some point of its way.
TEST_F(Program, KilledWhileSavingItGoesOnBitwise) {
  const TempDir out;
  const auto arguments = [&](const std::string& name, const std::string& every) {
    return train_arguments(shared("train"), sets({"checkpoint.dir=" + out / name, "checkpoint.every=" + every,
                                                  "train.steps=40", "log.every=1", "mesh.zero=1"}) +
                                                std::vector<std::string>{"--nproc", "2"});
  };
  std::int64_t last = 0;
  for (const int step : {3, 8, 14, 21, 29}) {
    const Child agent = start(arguments("parts", "1"));
    const std::string said = read_until(agent.out, "step=" + std::to_string(step) + "/40");
    kill(agent.pid, SIGKILL);  // its ranks die with it
    EXPECT_EQ(finish(agent).code, 128 + SIGKILL);
    if (last > 0) {
      EXPECT_THAT(said, ContainsRegex("resume step=[0-9]+ samples="));
    }
    auto latest = latest_checkpoint(out / "parts", OnDamage::refuse);
    ASSERT_TRUE(latest) << latest.error().message;
    if (!latest->reader) continue;  // killed before the first counted
    EXPECT_TRUE(latest->reader->verify());
    EXPECT_GE(latest->reader->info().step, last);
    last = latest->reader->info().step;
  }
  EXPECT_GT(last, 10);
  const auto again = finish(start(arguments("parts", "1"))), whole = finish(start(arguments("whole", "0")));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(checksums(out / "parts/step-40"), checksums(out / "whole/step-40"));
}

// Every step is saved, so the signal finds a save in flight: it is finished, then the last step is saved too.
TEST_F(Program, SigtermWhileSavingLosesNothing) {
  const TempDir out;
  const auto arguments = train_arguments(
      shared("train"),
      sets({"checkpoint.dir=" + out / "ckpt", "checkpoint.every=1", "train.steps=1000000", "log.every=1"}) +
          std::vector<std::string>{"--nproc", "2"});
  const Child agent = start(arguments);
  read_until(agent.out, "step=3/1000000");
  kill(agent.pid, SIGTERM);
  const auto run = finish(agent);
  EXPECT_EQ(run.code, 75) << run.err;
  const auto at = run.out.find("stopped at step ");
  ASSERT_NE(at, std::string::npos) << run.out;
  const std::string step(split(std::string_view(run.out).substr(at), ' ')[3]);
  EXPECT_THAT(run.out, HasSubstr("checkpoint step=" + step + " path="));
  const auto listed = finish(start({"ckpt", "verify", out / "ckpt"}));
  EXPECT_EQ(listed.code, 0) << listed.out;
  EXPECT_THAT(listed.out, ContainsRegex("STATE\n" + step + " +[0-9.]+ [KM]iB +whole\n"));
  const Child again = start(arguments);
  EXPECT_THAT(read_until(again.out, " samples="), HasSubstr("resume step=" + step));
  read_until(again.out, "loss=");
  kill(again.pid, SIGTERM);
  EXPECT_EQ(finish(again).code, 75);
}

}  // namespace
}  // namespace muster::train
