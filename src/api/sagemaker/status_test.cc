#include "api/sagemaker/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/sagemaker/images.h"
#include "base/text.h"

namespace muster::api::sagemaker {
namespace {

using domain::Cause;
using domain::End;
using domain::Job;
using domain::Outcome;
using domain::Phase;
using domain::Stop;
using ::testing::ElementsAre;

std::vector<std::string> statuses(const Job& job) {
  std::vector<std::string> out;
  for (const auto& transition : secondary_transitions(job, "", "")) out.emplace_back(transition.status);
  return out;
}

Job job_with(std::vector<std::pair<std::int64_t, Phase>> history) {
  Job job;
  for (const auto& [at, phase] : history) job.history.push_back({.at = Time{at}, .phase = phase});
  job.phase = history.back().second;
  if (job.phase == Phase::ended) job.ended = Time{history.back().first};
  return job;
}

TEST(Status, OfASuccess) {
  auto job = job_with({{0, Phase::queued},
                       {0, Phase::launching},
                       {20, Phase::preparing},
                       {900, Phase::ready},
                       {905, Phase::running},
                       {2000, Phase::finishing},
                       {2100, Phase::ended}});
  job.end = End{};
  EXPECT_THAT(statuses(job), ElementsAre("Starting", "Downloading", "Training", "Uploading", "Completed"));
  const auto transitions = secondary_transitions(job, "", "");
  EXPECT_EQ(transitions[1].start, Time{20});
  EXPECT_EQ(transitions[1].end, Time{905});
  EXPECT_EQ(transitions.back().end, Time{2100});
  EXPECT_EQ(primary_status(job), "Completed");
}

TEST(Status, OfAWaitIsPending) {
  auto job = job_with({{0, Phase::queued}});
  const auto waiting = secondary_transitions(job, "Waiting: the job needs 4 nodes", "");
  EXPECT_EQ(waiting.back().status, "Pending");
  EXPECT_EQ(waiting.back().message, "Waiting: the job needs 4 nodes");
  job = job_with({{0, Phase::queued}, {5000, Phase::launching}, {5100, Phase::preparing}});
  EXPECT_THAT(statuses(job), ElementsAre("Starting", "Pending", "Downloading"));
}

TEST(Status, OfAStop) {
  auto job =
      job_with({{0, Phase::queued}, {0, Phase::launching}, {10, Phase::preparing}, {20, Phase::running}});
  job.stop = Stop{Cause::user, Time{30}};
  job.history.push_back({.at = Time{30}, .phase = Phase::running, .stopping = true});
  EXPECT_EQ(primary_status(job), "Stopping");
  EXPECT_THAT(statuses(job), ElementsAre("Starting", "Downloading", "Training", "Stopping"));
  job.history.push_back({.at = Time{40}, .phase = Phase::finishing, .stopping = true});
  job.history.push_back({.at = Time{50}, .phase = Phase::ended, .stopping = true});
  job.phase = Phase::ended;
  job.end = End{.outcome = Outcome::stopped, .cause = Cause::user};
  EXPECT_THAT(statuses(job),
              ElementsAre("Starting", "Downloading", "Training", "Stopping", "Uploading", "Stopped"));
  job.end->cause = job.stop->cause = Cause::limit;
  EXPECT_EQ(statuses(job).back(), "MaxRuntimeExceeded");
  EXPECT_EQ(primary_status(job), "Stopped");
}

TEST(Status, AnotherRanksFailureIsNotAStop) {
  auto job =
      job_with({{0, Phase::queued}, {0, Phase::launching}, {10, Phase::preparing}, {20, Phase::running}});
  job.stop = Stop{Cause::program, Time{30}};
  job.history.push_back({.at = Time{30}, .phase = Phase::running, .stopping = true});
  EXPECT_EQ(primary_status(job), "InProgress");
  EXPECT_THAT(statuses(job), ElementsAre("Starting", "Downloading", "Training"));
}

// Describe, List and StatusEquals all ask the same function.
TEST(Status, IsStoppingByItsCause) {
  struct Row {
    std::optional<Cause> stop;
    std::string_view primary, secondary;
  };
  for (const auto& row :
       {Row{{}, "InProgress", "Training"}, Row{Cause::program, "InProgress", "Training"},
        Row{Cause::infrastructure, "InProgress", "Training"}, Row{Cause::user, "Stopping", "Stopping"},
        Row{Cause::limit, "Stopping", "Stopping"}}) {
    EXPECT_EQ(primary_status(Phase::running, row.stop, {}), row.primary);
    EXPECT_EQ(secondary_status(Phase::running, row.stop, {}, {}), row.secondary);
    EXPECT_EQ(primary_status(Phase::ended, row.stop, Outcome::failed), "Failed");
  }
}

// Its first attempt was wound down after a lost node, its second is stopped by a user.
TEST(Status, AStopSaysNothingOfEarlierAttempts) {
  auto job =
      job_with({{0, Phase::queued}, {0, Phase::launching}, {10, Phase::preparing}, {20, Phase::running}});
  job.history.push_back({.at = Time{30}, .phase = Phase::running, .stopping = true, .attempt = 1});
  job.history.push_back({.at = Time{40}, .phase = Phase::queued, .attempt = 1});
  job.history.push_back({.at = Time{41}, .phase = Phase::launching, .attempt = 2});
  job.history.push_back({.at = Time{50}, .phase = Phase::running, .attempt = 2});
  job.history.push_back({.at = Time{60}, .phase = Phase::running, .stopping = true, .attempt = 2});
  job.attempts = 2;
  job.stop = Stop{Cause::user, Time{60}};
  EXPECT_THAT(statuses(job),
              ElementsAre("Starting", "Downloading", "Training", "Starting", "Training", "Stopping"));
}

TEST(Status, ARetryGoesBackToStarting) {
  const auto job = job_with({{0, Phase::queued},
                             {0, Phase::launching},
                             {10, Phase::preparing},
                             {20, Phase::running},
                             {30, Phase::queued},
                             {31, Phase::launching},
                             {40, Phase::preparing}});
  EXPECT_THAT(statuses(job), ElementsAre("Starting", "Downloading", "Training", "Starting", "Downloading"));
}

TEST(Status, IsTotal) {
  for (int phase = 0; phase <= static_cast<int>(Phase::ended); ++phase) {
    for (const auto stop :
         {std::optional<Cause>(), std::optional(Cause::user), std::optional(Cause::program)}) {
      for (const auto outcome : {Outcome::succeeded, Outcome::failed, Outcome::stopped}) {
        for (const auto cause : {Cause::program, Cause::user, Cause::infrastructure, Cause::limit}) {
          EXPECT_FALSE(primary_status(static_cast<Phase>(phase), stop, outcome).empty());
          EXPECT_FALSE(secondary_status(static_cast<Phase>(phase), stop, outcome, cause).empty());
        }
      }
    }
  }
}

TEST(FailureReason, NamesWhoFailedAndFits) {
  Job job;
  job.phase = Phase::ended;
  job.end =
      End{.outcome = Outcome::failed, .cause = Cause::program, .reason = "algo-2: boom", .exit_code = 3};
  EXPECT_EQ(failure_reason(job), "AlgorithmError: algo-2: boom, exit code: 3");
  job.end->reason = std::string(3000, 'x');
  EXPECT_EQ(failure_reason(job).size(), domain::kReasonMax);
  // The limit counts characters; none is cut in two.
  job.end->reason.clear();
  for (int i = 0; i < 2000; ++i) job.end->reason += "é";
  const auto wide = failure_reason(job);
  EXPECT_TRUE(is_utf8(wide));
  EXPECT_TRUE(wide.ends_with("é, exit code: 3"));
  constexpr std::size_t kAscii = 16 + 14;  // "AlgorithmError: ", ", exit code: 3"
  EXPECT_EQ(wide.size(), kAscii + 2 * (domain::kReasonMax - kAscii));
  job.end = End{.outcome = Outcome::failed, .cause = Cause::infrastructure, .reason = "node-1 was lost"};
  EXPECT_EQ(failure_reason(job), "InternalServerError: node-1 was lost");
}

TEST(Images, LongestPatternWins) {
  const PatternTable table = {{"*", "muster/host"}, {"*/pytorch*", "muster/train"}, {"bad", "something"}};
  EXPECT_EQ(resolve_image(table, "muster/data:1").value(), "data");
  EXPECT_EQ(resolve_image(table, "123.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2").value(), "train");
  EXPECT_EQ(resolve_image(table, "busybox").value(), "host");
  EXPECT_FALSE(resolve_image(table, "bad"));
  EXPECT_FALSE(resolve_image({}, "busybox"));
  EXPECT_TRUE(matches("a*b*c", "aXbYbc"));
  EXPECT_FALSE(matches("a*b", "abX"));
}

}  // namespace
}  // namespace muster::api::sagemaker
