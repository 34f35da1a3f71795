#include "train/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "base/text.h"
#include "train/agent/test_process.h"

namespace muster::train {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The agent under test, in a process of its own. Its ranks are shell scripts: $2 is the rank.
TEST(DISABLED_FakeAgent, Runs) {
  hold_stop_signals();
  const auto end = run_agent({.command = {"/bin/sh", "-c", variable("SCRIPT"), "rank"},
                              .place = {.ranks = static_cast<int>(*parse_int(variable("RANKS")))},
                              .store_host = "127.0.0.1",
                              .store_port = 1,
                              .failure_grace = Millis(300),
                              .same_stop = Millis(*parse_int(variable("SAME_STOP"))),
                              .stop_grace = Millis(2500)});
  if (!end) {
    std::cerr << end.error().message << "\n";
    _exit(99);
  }
  std::cerr << "failure: " << end->failure << "\n" << std::flush;
  _exit(end->code);
}

Child start(const std::string& script, int ranks, Millis same_stop = Millis(60'000)) {
  return start_program(
      {*own_program(), "--gtest_also_run_disabled_tests", "--gtest_filter=DISABLED_FakeAgent.Runs"},
      {{"SCRIPT", script},
       {"RANKS", std::to_string(ranks)},
       {"SAME_STOP", std::to_string(same_stop.count())}});
}

bool alive(pid_t pid) { return kill(pid, 0) == 0; }

// Whether it is gone, and reaped, within 2 s.
bool goes(pid_t pid) {
  for (int i = 0; i < 100 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return !alive(pid);
}

// Of a line "pid 123" that is to come; 0 and a failure of the test if it is no number.
pid_t read_pid(const UniqueFd& fd) {
  read_until(fd, "pid ");
  const auto number = parse_int(trim(read_until(fd, "\n")));
  EXPECT_TRUE(number);
  return static_cast<pid_t>(number.value_or(0));
}

TEST(Agent, PassesPlaceAndOutput) {
  const auto run = finish(start(R"(echo "out of $2 of $4"; echo "err of $2" >&2)", 2));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("\nout of 0 of 2\n"));  // rank 0's as it is
  EXPECT_THAT(run.out, Not(HasSubstr("out of 1")));
  EXPECT_THAT(run.err, HasSubstr("[rank 1] out of 1 of 2\n"));
  EXPECT_THAT(run.err, HasSubstr("err of 0\n"));
  EXPECT_THAT(run.err, HasSubstr("[rank 1] err of 1\n"));
}

TEST(Agent, AFailedRankStopsTheOthersAndIsNamed) {
  const auto run =
      finish(start(R"(if [ $2 = 1 ]; then echo "no such file: x" >&2; exit 3; fi; exec sleep 100)", 3));
  EXPECT_EQ(run.code, 3);
  EXPECT_LT(run.took, Millis(5000));
  EXPECT_THAT(run.err, HasSubstr("[rank 1] no such file: x\nrank 1 ended with exit code 3\n"));
  EXPECT_THAT(run.err, HasSubstr("failure: rank 1 ended with exit code 3: no such file: x\n"));
}

// Lines of others that follow push those of the culprit out of sight.
TEST(Agent, TheLastLinesOfTheCulpritAreShownAgainBelowThoseOfOthers) {
  const Child child = start(
      R"(if [ $2 = 1 ]; then trap 'kill $!; exit 3' TERM; else trap 'echo lost >&2; kill $!; exit 69' TERM; fi
         sleep 100 & echo "ready: no such file" >&2; wait)",
      2);
  read_until(child.err, "ready: ");
  read_until(child.err, "ready: ");
  kill(child.pid, SIGTERM);
  const auto run = finish(child);
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err,
              HasSubstr("\nlost\nrank 1 ended with exit code 3; its last lines:\n  ready: no such file\n"));
}

// As of a configuration that cannot work, which every rank finds out for itself.
TEST(Agent, AnErrorOfAllRanksIsShownOnce) {
  const auto run = finish(start(R"(echo "muster-train: rank $2: no such key" >&2; exit 2)", 3));
  EXPECT_EQ(run.code, kExitUsage);
  const std::string shown = run.err.substr(0, run.err.find("failure: "));
  EXPECT_THAT(shown, ContainsRegex("^(\\[rank [12]\\] )?muster-train: rank [0-2]: no such key\n"
                                   "rank [0-2] ended with exit code 2\n$"));
  EXPECT_THAT(run.err, ContainsRegex("failure: rank [0-2] ended with exit code 2: .*no such key\n"));
}

// Of agree(): it begins with the rank that failed, which need not be the one that says so.
TEST(Agent, AnErrorThatNamesARankIsNotNumberedAgain) {
  EXPECT_EQ(error_line(0, "no such key"), "muster-train: rank 0: no such key");
  for (const int rank : {0, 12})
    EXPECT_EQ(error_line(rank, "rank 12: the disk is full"), "muster-train: rank 12: the disk is full");
  EXPECT_EQ(error_line(0, "rank 0 needs 5 GiB"), "muster-train: rank 0: rank 0 needs 5 GiB");
  const auto run = finish(start(R"(echo "muster-train: rank 1: the disk is full" >&2; exit 1)", 2));
  EXPECT_THAT(run.err.substr(0, run.err.find("failure: ")),
              ContainsRegex("^(\\[rank 1\\] )?muster-train: rank 1: the disk is full\n"
                            "rank [01] ended with exit code 1\n$"));
}

// Ranks that fail for reasons of their own are all heard.
TEST(Agent, DifferentErrorsOfRanksAreAllShown) {
  const auto run = finish(start(R"(echo "muster-train: rank $2: disk $2 is full" >&2; exit 1)", 2));
  EXPECT_THAT(run.err, HasSubstr("muster-train: rank 0: disk 0 is full\n"));
  EXPECT_THAT(run.err, HasSubstr("[rank 1] muster-train: rank 1: disk 1 is full\n"));
}

TEST(Agent, BlamesTheKilledRankNotItsVictims) {
  // Rank 0 loses its peer and says so before the other's end is known for sure.
  const auto run =
      finish(start(R"(if [ $2 = 1 ]; then sleep 0.1; kill -9 $$; fi; echo lost >&2; exit 69)", 2));
  EXPECT_EQ(run.code, 128 + SIGKILL);
  EXPECT_THAT(run.err, HasSubstr("failure: rank 1 was killed by signal 9 (Killed)"));
}

TEST(Agent, ALostPeerElsewhereIsStillAFailure) {
  const auto run = finish(start("echo gone >&2; exit 69", 1));
  EXPECT_EQ(run.code, kExitLostPeer);
  EXPECT_THAT(run.err, HasSubstr("failure: rank 0 ended with exit code 69: gone"));
}

// Rank 0 loses a peer on another node; rank 1 has not noticed yet, and is killed by the agent.
TEST(Agent, BlamesALostPeerNotTheRanksThatItKilledForIt) {
  const auto run = finish(start(R"(if [ $2 = 0 ]; then echo gone >&2; exit 69; fi; exec sleep 100)", 3));
  EXPECT_EQ(run.code, kExitLostPeer);
  EXPECT_THAT(run.err, HasSubstr("failure: rank 0 ended with exit code 69: gone\n"));
}

TEST(Agent, AProgramThatIsNotThere) {
  hold_stop_signals();
  const auto end =
      run_agent({.command = {"/no/such/program"}, .place = {}, .store_host = "", .store_port = 0});
  ASSERT_FALSE(end);
  EXPECT_THAT(end.error().message, HasSubstr("/no/such/program"));
}

constexpr char kStops[] = R"(trap 'echo saved $2; kill $!; exit 75' TERM; sleep 100 & echo ready $2; wait)";

TEST(Agent, ForwardsSigtermAndTellsThatItStopped) {
  const Child child = start(kStops, 1);
  read_until(child.out, "ready 0");
  kill(child.pid, SIGTERM);
  const auto run = finish(child);
  EXPECT_EQ(run.code, kExitStopped);
  EXPECT_THAT(run.out, HasSubstr("saved 0"));
  EXPECT_THAT(run.err, HasSubstr("failure: \n"));
}

// Rank 0 has begun and would save, but rank 1 has no handler yet: there is nothing to wait for.
TEST(Agent, AStopWhileStartingIsNoFailure) {
  const Child child =
      start(R"(if [ $2 = 0 ]; then trap '' TERM; fi; echo ready $2 >&2; while :; do sleep 0.05; done)", 2);
  const std::string first = read_until(child.err, "ready ");
  read_until(child.err, "ready ");
  kill(child.pid, SIGTERM);
  const auto run = finish(child);
  EXPECT_EQ(run.code, kExitStopped) << first << run.err;
  EXPECT_LT(run.took, Millis(2000));  // not stop_grace
  EXPECT_THAT(run.err, HasSubstr("stopped without saving"));
}

// Rank 1 does `last` when asked to stop, rank 0 loses it.
Finished stopped_while_saving(const std::string& last) {
  const Child child =
      start("if [ $2 = 1 ]; then trap '" + last + "' TERM; else trap 'echo lost >&2; exit 69' TERM; fi\n" +
                "echo ready $2 >&2; while :; do sleep 0.02; done",
            2);
  read_until(child.err, "ready ");
  read_until(child.err, "ready ");
  kill(child.pid, SIGTERM);
  return finish(child);
}

TEST(Agent, ARankThatCrashesAfterTheStopIsAFailure) {
  const auto run = stopped_while_saving("kill -9 $$");
  EXPECT_EQ(run.code, 128 + SIGKILL);
  EXPECT_THAT(run.err, HasSubstr("failure: rank 1 was killed by signal 9 (Killed)"));
  EXPECT_THAT(run.err, Not(HasSubstr("stopped without saving")));
}

TEST(Agent, AFullDiskAfterTheStopIsAFailure) {
  const auto run = stopped_while_saving("echo disk full >&2; exit 1");
  EXPECT_EQ(run.code, kExitFailed);
  EXPECT_THAT(run.err, HasSubstr("failure: rank 1 ended with exit code 1: disk full\n"));
}

// It is no better known why than without the stop.
TEST(Agent, ALossAloneAfterTheStopIsAFailure) {
  const auto run = stopped_while_saving("exit 75");
  EXPECT_EQ(run.code, kExitLostPeer);
  EXPECT_THAT(run.err, HasSubstr("failure: rank 0 ended with exit code 69: lost\n"));
}

TEST(Agent, ALossThatFollowsFromAStopWhileStartingIsNoFailure) {
  const auto run = stopped_while_saving("trap - TERM; kill -TERM $$");
  EXPECT_EQ(run.code, kExitStopped);
  EXPECT_THAT(run.err, HasSubstr("stopped without saving"));
}

// As kill(1) does to one process. Rank 0 has begun and loses it.
TEST(Agent, AStopOfOneRankWhileStartingStopsAll) {
  const Child child = start(
      R"(if [ $2 = 1 ]; then echo pid $$; exec sleep 100; fi
         trap 'echo lost >&2; exit 69' TERM; echo ready; while :; do sleep 0.02; done)",
      2);
  read_until(child.out, "ready");
  const pid_t pid = read_pid(child.err);
  ASSERT_GT(pid, 0);
  kill(pid, SIGTERM);
  const auto run = finish(child);
  EXPECT_EQ(run.code, kExitStopped);
  EXPECT_THAT(run.err, HasSubstr("stopped without saving: rank 1 was asked to stop while starting\n"));
}

constexpr char kDeaf[] = R"(trap 'echo heard' TERM; echo ready; while :; do sleep 0.05; done)";

TEST(Agent, KillsRanksThatDoNotStopInTime) {
  const Child child = start(kDeaf, 1);
  read_until(child.out, "ready");
  kill(child.pid, SIGTERM);
  const auto run = finish(child);
  EXPECT_EQ(run.code, 128 + SIGKILL);
  EXPECT_GE(run.took, Millis(2000));
  EXPECT_LT(run.took, Millis(5000));
  EXPECT_THAT(run.err, ContainsRegex("failure: rank 0 was killed 2.5 s after it was asked to stop; nothing "
                                     "since the last checkpoint is kept"));
}

// As timeout(1) does, which signals its child and then its whole process group: the rank gets its time.
TEST(Agent, SignalsSoonAfterTheFirstAreTheSameRequest) {
  const Child child = start(kDeaf, 1);
  read_until(child.out, "ready");
  kill(child.pid, SIGTERM);
  read_until(child.out, "heard");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) kill(child.pid, signal);
  const auto run = finish(child);
  EXPECT_GE(run.took, Millis(2000));
  EXPECT_THAT(run.err, HasSubstr("failure: rank 0 was killed 2.5 s after it was asked to stop"));
  EXPECT_THAT(run.out, Not(HasSubstr("heard")));
}

TEST(Agent, ALaterSignalKillsAtOnceAndSaysSo) {
  const Child child = start(kDeaf, 1, Millis(0));
  read_until(child.out, "ready");
  kill(child.pid, SIGINT);
  read_until(child.out, "heard");
  kill(child.pid, SIGINT);
  const auto run = finish(child);
  EXPECT_EQ(run.code, 128 + SIGKILL);
  EXPECT_LT(run.took, Millis(2000));
  EXPECT_THAT(run.err, ContainsRegex("failure: rank 0 was killed by a signal [0-9.]+ m?s after the first; "
                                     "nothing since the last checkpoint is kept"));
}

// Rank 1 has ended as stopped, so rank 0 had saved as well and only had to leave.
TEST(Agent, ALaterSignalWhenAllHaveSavedIsNoFailure) {
  const Child child = start(
      R"(if [ $2 = 0 ]; then trap '' TERM; echo ready; else trap 'exit 75' TERM; echo pid $$; fi
         while :; do sleep 0.02; done)",
      2, Millis(0));
  read_until(child.out, "ready");
  const pid_t pid = read_pid(child.err);
  ASSERT_GT(pid, 0);
  kill(child.pid, SIGTERM);
  ASSERT_TRUE(goes(pid));
  kill(child.pid, SIGTERM);
  const auto run = finish(child);
  EXPECT_EQ(run.code, kExitStopped);
  EXPECT_LT(run.took, Millis(2000));
  EXPECT_THAT(run.err, HasSubstr("failure: \n"));
}

TEST(Agent, RanksDieWithTheirAgent) {
  const Child child = start("echo pid $$; exec sleep 100", 1);
  const pid_t pid = read_pid(child.out);
  ASSERT_GT(pid, 0);
  ASSERT_TRUE(alive(pid));
  kill(child.pid, SIGKILL);
  wait_child(child);
  EXPECT_TRUE(goes(pid));
}

TEST(Agent, LongLinesAndALastLineWithoutEnd) {
  const auto run = finish(start(R"(head -c 200000 /dev/zero | tr '\0' x; printf end)", 1));
  EXPECT_EQ(run.code, 0);
  EXPECT_GE(std::count(run.out.begin(), run.out.end(), 'x'), 200000);
  EXPECT_THAT(run.out, HasSubstr("end\n"));
}

}  // namespace
}  // namespace muster::train
