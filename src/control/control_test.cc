// The edges of decide() that no well-behaved runner or client shows. What jobs do is in tests/scenarios.
#include "control/control.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "base/json.h"
#include "control/detail/edit.h"

namespace muster::control {
namespace {

using domain::LaunchId;
using domain::RankExit;
using domain::RankPhase;
using domain::ReportAnswer;

// One thread's worth of the loop, without a store.
class Control {
 public:
  Reply send(const Event& event) {
    observe(state, event);
    auto decision = decide(state, event, now);
    apply(state, decision.commit);
    last_commit = decision.commit;
    apply(state, schedule(state, now));
    return decision.reply.value_or(Reply{});
  }
  void nodes(int count) {
    EngineInventory event;
    event.asked = state.moment;
    for (int i = 1; i <= count; ++i) {
      domain::Node node;
      node.name = "node-" + std::to_string(i);
      event.inventory.nodes.push_back(node);
    }
    send(event);
  }
  Reply submit(const std::string& name, int count) {
    SubmitJob job;
    job.name = name;
    job.nodes = count;
    return send(job);
  }
  Reply report(LaunchId launch, std::uint64_t number, RankPhase phase, std::optional<RankExit> exit = {}) {
    return send(Report{{launch, number, phase, "words", std::move(exit)}});
  }

  // As the last commit left it.
  const domain::Job& job_put(domain::JobId id) const {
    for (const auto& change : last_commit.changes) {
      const auto* put = std::get_if<domain::Put>(&change);
      const auto* job = put != nullptr ? std::get_if<domain::Job>(&put->record) : nullptr;
      if (job != nullptr && job->id == id) return *job;
    }
    throw std::logic_error("the last commit did not put " + to_string(id));
  }

  State state;
  Time now{1'000};
  domain::Commit last_commit;
};

LaunchId launch(int rank, std::uint64_t attempt = 1, int incarnation = 1) {
  return {domain::AttemptId{attempt}, rank, incarnation};
}

RankExit exit_of(int code, std::string reason = {}) {
  RankExit exit;
  exit.exit_code = code;
  exit.reason = std::move(reason);
  return exit;
}

class ControlTest : public testing::Test {
 protected:
  void SetUp() override {
    control.nodes(2);
    control.submit("a", 2);
    control.send(LaunchDone{domain::AttemptId{1}, std::nullopt});
  }
  const domain::Rank& rank(std::size_t index) {
    return control.state.attempts.at(domain::AttemptId{1}).ranks[index];
  }
  Control control;
};

TEST_F(ControlTest, ReportsApplyOnceAndInOrder) {
  EXPECT_EQ(control.report(launch(0), 2, RankPhase::ready).answer, ReportAnswer::gap);
  EXPECT_EQ(control.report(launch(0), 1, RankPhase::preparing).answer, ReportAnswer::applied);
  EXPECT_EQ(control.report(launch(0), 1, RankPhase::preparing).answer, ReportAnswer::duplicate);
  EXPECT_TRUE(control.last_commit.empty());
  EXPECT_EQ(rank(0).reports, 1U);
}

TEST_F(ControlTest, StrangersAndOldIncarnationsAreStaleAndLeaveNoTrace) {
  const auto seen = control.state.seen.size();
  for (const auto id : {launch(0, 99), launch(2), launch(-1), launch(0, 1, 2), launch(0, 1, 0)}) {
    EXPECT_EQ(control.report(id, 1, RankPhase::preparing).answer, ReportAnswer::stale) << to_string(id);
    EXPECT_FALSE(desired(control.state, id)) << to_string(id);
  }
  EXPECT_EQ(control.state.seen.size(), seen);
  EXPECT_EQ(control.state.guards.size(), 2U);
}

TEST_F(ControlTest, AJobWhoseRunnersAUserKilledIsStoppedAndNotLost) {
  control.report(launch(0), 1, RankPhase::preparing);
  const auto id = control.state.jobs.begin()->first;
  control.send(RankKilled{launch(0), "with the service"});
  control.send(RankKilled{launch(1), "with the service"});
  control.send(RankKilled{launch(1, 99), "with the service"});  // of a job that has ended meanwhile
  // What the dead runner left behind tells of a killed command; it does not matter any more.
  control.report(launch(0), 2, RankPhase::exited, exit_of(143, "killed"));
  control.send(RankGone{launch(0), "runner killed by signal 9"});
  control.send(RankGone{launch(1), "runner killed by signal 9"});
  const auto& job = control.job_put(id);
  EXPECT_EQ(job.end->outcome, domain::Outcome::stopped);
  EXPECT_EQ(job.end->cause, domain::Cause::user);
  EXPECT_EQ(job.history.back().message, "Stopped with the service");
}

TEST_F(ControlTest, ALostRankIsStaleWhileItsJobLives) {
  control.report(launch(1), 1, RankPhase::preparing);
  control.send(RankGone{launch(1), "killed"});
  EXPECT_EQ(rank(1).phase, RankPhase::lost);
  EXPECT_EQ(control.report(launch(1), 2, RankPhase::ready).answer, ReportAnswer::stale);
  EXPECT_FALSE(desired(control.state, launch(1)));
  EXPECT_TRUE(desired(control.state, launch(0))->stop);
}

TEST_F(ControlTest, ARunnerThatBreaksTheProtocolIsRefusedWithWords) {
  const auto refused = [](const Reply& reply) { return reply.error ? reply.error->message : "accepted"; };
  EXPECT_EQ(refused(control.report(launch(0), 1, RankPhase::running)),
            "report 1 of a1-r0-i1 says running, but the barrier is closed: wait for the target run");
  EXPECT_EQ(refused(control.report(launch(0), 1, RankPhase::exited)),
            "report 1 of a1-r0-i1 says exited without saying how the command ended");
  EXPECT_EQ(refused(control.report(launch(0), 1, RankPhase::lost)),
            "report 1 of a1-r0-i1 says lost after starting: a rank does not go back");
  control.report(launch(0), 1, RankPhase::ready);
  EXPECT_EQ(refused(control.report(launch(0), 2, RankPhase::preparing)),
            "report 2 of a1-r0-i1 says preparing after ready: a rank does not go back");
  EXPECT_EQ(rank(0).reports, 1U);
}

TEST_F(ControlTest, TheWordForARankOnlyRises) {
  std::uint64_t version = 0;
  const auto rises = [&] {
    const auto word = desired(control.state, launch(0));
    ASSERT_TRUE(word);
    EXPECT_GT(word->version, version);
    version = word->version;
  };
  rises();
  for (const int r : {0, 1}) control.report(launch(r), 1, RankPhase::ready);
  rises();
  control.report(launch(1), 2, RankPhase::exited, exit_of(1, "boom"));
  rises();  // stopped because of algo-2
  EXPECT_EQ(desired(control.state, launch(0))->grace, kFailureGrace);
  control.send(StopJob{domain::JobKind::training, "a"});
  rises();
  EXPECT_EQ(desired(control.state, launch(0))->grace, kFailureGrace);  // a later stop does not lengthen it
  control.report(launch(0), 2, RankPhase::exited, exit_of(0));
  EXPECT_EQ(desired(control.state, launch(0))->target, domain::Target::run);  // rank 0 uploads last
  EXPECT_EQ(desired(control.state, launch(1))->target, domain::Target::upload);
  control.report(launch(1), 3, RankPhase::uploaded, exit_of(1, "boom"));
  rises();
  EXPECT_EQ(desired(control.state, launch(1))->target, domain::Target::exit);
}

TEST_F(ControlTest, ReasonsAreClippedByCharacters) {
  std::string reason;
  for (int i = 0; i < 2'000; ++i) reason += "\xC3\xA9";
  control.report(launch(0), 1, RankPhase::exited, exit_of(1, reason));
  const auto& kept = control.state.jobs.begin()->second.stop->reason;
  EXPECT_EQ(kept.size(), 8 + 2 * (domain::kReasonMax - 8 - 3) + 3);  // "algo-1: ", e-acutes, "..."
  EXPECT_TRUE(kept.ends_with("\xC3\xA9..."));
}

TEST_F(ControlTest, AHugeTickCountsForFiveSeconds) {
  control.send(Tick{std::chrono::hours(24)});
  EXPECT_EQ(control.state.guards.at(launch(0)).silent, kTickMax);
  EXPECT_FALSE(control.state.jobs.begin()->second.stop);
}

TEST_F(ControlTest, AnObservationOlderThanTheLaunchDoesNotLoseIt) {
  EngineInventory old;
  old.asked = 0;
  control.send(old);
  EXPECT_EQ(rank(0).phase, RankPhase::starting);
  EngineInventory fresh;
  fresh.asked = control.state.moment;
  control.send(fresh);
  EXPECT_TRUE(control.state.jobs.empty());
  EXPECT_EQ(control.state.ended.begin()->second.cause, domain::Cause::infrastructure);
}

TEST_F(ControlTest, PruneForgetsOnlyWhatEndedBefore) {
  const auto id = control.state.jobs.begin()->first;
  for (const int r : {0, 1}) control.send(RankGone{launch(r), "killed"});
  EXPECT_EQ(control.job_put(id).end->reason, "algo-1 on node-1 was lost: killed");  // no word of an API
  control.now = Time{5'000};
  EXPECT_TRUE(control.send(PruneJobs{Time{1'000}}).pruned.empty());
  EXPECT_EQ(control.send(PruneJobs{Time{1'001}}).pruned,
            (std::vector<JobName>{{domain::JobKind::training, "a"}}));
  ASSERT_EQ(control.state.outbox.size(), 1U);
  EXPECT_EQ(control.state.outbox.begin()->second.body,
            R"({"group":"/aws/sagemaker/TrainingJobs","prefix":"a/","until":1000})");
  control.send(OutboxDone{1});
  control.send(OutboxDone{1});
  EXPECT_TRUE(control.state.outbox.empty());
  EXPECT_FALSE(control.submit("a", 1).error);
}

TEST(ControlPrune, OfThoseThatAreNamedOnlyTheOldAreForgotten) {
  Control control;
  using enum domain::JobKind;
  for (const auto* name : {"a", "b", "c"}) control.submit(name, 1);
  for (const auto* name : {"a", "b"}) control.send(StopJob{training, name});
  EXPECT_TRUE(control.send(PruneJobs{Time{1'000}, {{{training, "a"}}}}).pruned.empty());
  const auto reply =
      control.send(PruneJobs{Time{1'001}, {{{training, "a"}, {processing, "b"}, {training, "c"}}}});
  EXPECT_EQ(reply.pruned, (std::vector<JobName>{{training, "a"}}));
  EXPECT_EQ(reply.left, 0U);
  EXPECT_EQ(control.state.names.size(), 2U);
  EXPECT_TRUE(control.send(PruneJobs{Time{1'001}, std::set<JobName>{}}).pruned.empty());
}

TEST(ControlPrune, ALargeOneIsDoneInParts) {
  Control control;
  for (std::size_t i = 0; i < kPruneMax + 2; ++i) {
    const auto name = "j" + std::to_string(i);
    control.submit(name, 1);
    control.send(StopJob{domain::JobKind::training, name});
  }
  const auto first = control.send(PruneJobs{Time{1'001}});
  EXPECT_EQ(first.pruned.size(), kPruneMax);
  EXPECT_EQ(first.pruned.front().name, "j0");
  EXPECT_EQ(first.left, 2U);
  EXPECT_EQ(control.state.ended.size(), 2U);
  const auto second = control.send(PruneJobs{Time{1'001}});
  EXPECT_EQ(second.pruned.size(), 2U);
  EXPECT_EQ(second.left, 0U);
}

TEST(ControlMemory, AWaitingJobCostsLessThanAKilobyte) {
  Control control;
  constexpr int kJobs = 20'000;
  const auto before = mallinfo2().uordblks;
  for (int i = 0; i < kJobs; ++i) control.submit("a-job-with-a-name-of-usual-length-" + std::to_string(i), 4);
  control.last_commit = {};
  EXPECT_LT((mallinfo2().uordblks - before) / kJobs, 1'024U);
}

}  // namespace
}  // namespace muster::control
