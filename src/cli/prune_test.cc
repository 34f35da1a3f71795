// Prune against a service of jobs in memory and an S3 that can keep objects from being removed.
#include "cli/prune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/file.h"
#include "cli/output.h"
#include "data/s3/testing.h"

namespace muster::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr const char* kBucket = "uploads";

json::Object training_job(const std::string& name, const std::string& status, double ended = 1) {
  json::Object job{{"TrainingJobName", name}, {"TrainingJobStatus", status}, {"CreationTime", 1.0}};
  job["ModelArtifacts"] = {{"S3ModelArtifacts", "s3://models/runs/" + name + "/output/model.tar.gz"}};
  if (status != "InProgress") job["TrainingEndTime"] = ended;
  return job;
}

json::Object with_input(json::Object job, const std::string& channel, const std::string& uri) {
  job["InputDataConfig"] =
      json::Array{{{"ChannelName", channel}, {"DataSource", {{"S3DataSource", {{"S3Uri", uri}}}}}}};
  return job;
}

json::Object processing_job(const std::string& name, const std::string& input, const std::string& uri) {
  json::Object job{{"ProcessingJobName", name},
                   {"ProcessingJobStatus", "Completed"},
                   {"CreationTime", 1.0},
                   {"ProcessingEndTime", 1.0}};
  job["ProcessingInputs"] = json::Array{{{"InputName", input}, {"S3Input", {{"S3Uri", uri}}}}};
  return job;
}

// Lists one job a page, describes and forgets.
class FakeJobs final : public net::Handler {
 public:
  FakeJobs() {
    auto server = net::Server::start({}, *this);
    EXPECT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  void add(json::Object job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  // Calls whose target or path ends with `what` are answered 500.
  void break_calls(std::string what) {
    const std::lock_guard lock(mutex_);
    broken_ = std::move(what);
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const auto& job : jobs_) out.push_back(name_of(job, true) + name_of(job, false));
    return out;
  }
  int prunes() {
    const std::lock_guard lock(mutex_);
    return prunes_;
  }

  std::variant<net::Route, net::Response> route(const net::RequestHead&) override {
    net::Route route;
    route.handle = [this](net::Request& request) { return handle(request); };
    return route;
  }

 private:
  static std::string name_of(const json::Object& job, bool training) {
    return json::opt_string(job, training ? "TrainingJobName" : "ProcessingJobName").value_or("");
  }

  net::Response handle(const net::Request& request) {
    const std::lock_guard lock(mutex_);
    const auto target = std::string(request.head.headers.get("X-Amz-Target"));
    const auto called = target.empty() ? request.head.path : target;
    net::Response response;
    if (!broken_.empty() && called.ends_with(broken_)) {
      response.status = 500;
      response.body = R"({"__type":"InternalFailure","message":"broken"})";
      return response;
    }
    const auto asked = json::parse_object(request.body).value();
    const bool training = called.find("Training") != std::string::npos;
    if (called == "/api/v1/prune") {
      response.body = json::dump(forget(asked));
    } else if (called.starts_with("SageMaker.List")) {
      response.body = json::dump(page(asked, training));
    } else {
      const auto wanted = name_of(asked, training);
      for (const auto& job : jobs_)
        if (name_of(job, training) == wanted) response.body = json::dump(job);
    }
    return response;
  }
  json::Object page(const json::Object& asked, bool training) const {
    std::vector<json::Object> all;
    for (const auto& job : jobs_)
      if (!name_of(job, training).empty()) all.push_back(job);
    const auto at = parse_int(json::opt_string(asked, "NextToken").value_or("0")).value();
    json::Array some;
    if (static_cast<std::size_t>(at) < all.size()) some.push_back(all[static_cast<std::size_t>(at)]);
    json::Object out{{training ? "TrainingJobSummaries" : "ProcessingJobSummaries", some}};
    if (static_cast<std::size_t>(at) + 1 < all.size()) out["NextToken"] = std::to_string(at + 1);
    return out;
  }
  json::Object forget(const json::Object& asked) {
    ++prunes_;
    json::Array pruned;
    for (const auto& entry : asked.at("jobs").as_array()) {
      const bool training = json::opt_string(entry.as_object(), "kind") == "training";
      const auto name = json::opt_string(entry.as_object(), "name").value_or("");
      if (std::erase_if(jobs_, [&](const auto& job) { return name_of(job, training) == name; }) == 1)
        pruned.push_back(entry);
    }
    return {{"pruned", std::move(pruned)}, {"left", 0}, {"uploads_aborted", 0}};
  }

  std::mutex mutex_;
  std::vector<json::Object> jobs_;
  std::string broken_;
  int prunes_ = 0;
  std::unique_ptr<net::Server> server_;
};

class PruneTest : public ::testing::Test {
 protected:
  Result<Pruned> prune_all() {
    Session session{data::DataDirectory::open_or_create(folder_ / "data").value(),
                    Client::create({.url = jobs_.url(), .credentials = {"AK", "secret", ""}}).value(),
                    "000000000000", kBucket, s3_.client()};
    return prune_jobs(session, 60, true);
  }
  std::vector<std::string> keys() {
    std::vector<std::string> out;
    for (const auto& [key, object] : s3_.objects()) out.push_back(key);
    return out;
  }

  TempDir folder_;
  FakeJobs jobs_;
  data::s3::testing::FakeS3 s3_;  // one bucket for all names
};

TEST_F(PruneTest, WhatOldJobsWroteAndUploadedGoesWithThem) {
  jobs_.add(with_input(training_job("old", "Failed"), "train", "s3://uploads/old/input/train"));
  jobs_.add(processing_job("old", "text", "s3://uploads/old/input/text"));
  jobs_.add(training_job("older", "Completed"));
  jobs_.add(training_job("runs", "InProgress"));
  jobs_.add(training_job("young", "Completed", SystemClock().now().unix_seconds() - 5));
  for (const auto* key : {"runs/old/output/model.tar.gz", "old/input/train/a/b", "old/input/text/c",
                          "runs/older/output/model.tar.gz", "runs/runs/output/x", "runs/young/output/x",
                          "old/input/mine", "runs/old-2/x"}) {
    s3_.put(key, "x");
  }
  const auto pruned = prune_all();
  ASSERT_TRUE(pruned) << pruned.error().message;
  EXPECT_THAT(pruned->forgotten, SizeIs(3));
  EXPECT_EQ(pruned->objects_removed, 4U);
  EXPECT_THAT(pruned->stayed, IsEmpty());
  EXPECT_THAT(jobs_.names(), UnorderedElementsAre("runs", "young"));
  EXPECT_THAT(keys(), UnorderedElementsAre("runs/runs/output/x", "runs/young/output/x", "old/input/mine",
                                           "runs/old-2/x"));
}

// Which objects go is known for certain first: nobody finds those of a forgotten job again.
TEST_F(PruneTest, AJobListThatCannotBeReadForgetsNothing) {
  jobs_.add(training_job("a", "Completed"));
  jobs_.add(training_job("b", "Completed"));
  s3_.put("runs/a/output/model.tar.gz", "x");
  for (const auto* broken : {"ListTrainingJobs", "ListProcessingJobs", "DescribeTrainingJob"}) {
    jobs_.break_calls(broken);
    EXPECT_EQ(prune_all().error().code, ErrorCode::unavailable) << broken;
    EXPECT_THAT(jobs_.names(), SizeIs(2)) << broken;
    EXPECT_THAT(keys(), SizeIs(1)) << broken;
  }
}

TEST_F(PruneTest, AJobWhoseObjectsCannotBeRemovedIsKeptAndTheOthersGo) {
  auto locked = training_job("stuck", "Completed");
  locked["ModelArtifacts"] = {{"S3ModelArtifacts", "s3://models/locked/stuck/output/model.tar.gz"}};
  jobs_.add(training_job("a", "Completed"));
  jobs_.add(locked);
  jobs_.add(training_job("z", "Completed"));
  for (const auto* key : {"runs/a/output/x", "locked/stuck/output/x", "runs/z/output/x"}) s3_.put(key, "x");
  const auto pruned = prune_all();
  ASSERT_TRUE(pruned);
  EXPECT_THAT(pruned->forgotten, SizeIs(2));
  ASSERT_THAT(pruned->stayed, SizeIs(1));
  EXPECT_EQ(pruned->stayed[0].first.name, "stuck");
  EXPECT_THAT(pruned->stayed[0].second.message, HasSubstr("locked/stuck/output/x"));
  EXPECT_THAT(jobs_.names(), ElementsAre("stuck"));
}

TEST_F(PruneTest, WhatWasNotForgottenCanBePrunedAgain) {
  jobs_.add(training_job("a", "Completed"));
  s3_.put("runs/a/output/x", "x");
  jobs_.break_calls("/api/v1/prune");
  EXPECT_FALSE(prune_all());
  EXPECT_THAT(jobs_.names(), SizeIs(1));
  jobs_.break_calls("");
  const auto again = prune_all();
  ASSERT_TRUE(again);
  EXPECT_THAT(again->forgotten, SizeIs(1));
}

TEST_F(PruneTest, ABucketThatIsGoneHoldsNothing) {
  jobs_.add(training_job("a", "Completed"));
  s3_.fault = [](const net::Request&) { return data::s3::testing::error_answer(404, "NoSuchBucket"); };
  const auto pruned = prune_all();
  ASSERT_TRUE(pruned);
  EXPECT_THAT(pruned->forgotten, SizeIs(1));
  EXPECT_THAT(pruned->stayed, IsEmpty());
}

TEST_F(PruneTest, WithoutOldJobsTheServiceIsAskedForTheUploadsAlone) {
  ASSERT_TRUE(prune_all());
  EXPECT_EQ(jobs_.prunes(), 1);
}

TEST_F(PruneTest, MoreJobsThanOneRequestNames) {
  for (int i = 0; i < 1'001; ++i) jobs_.add(processing_job("p" + std::to_string(i), "in", "s3://data/in"));
  EXPECT_THAT(prune_all()->forgotten, SizeIs(1'001));
  EXPECT_EQ(jobs_.prunes(), 2);
}

JobFacts facts(bool training, const std::string& name, json::Object raw) {
  JobFacts out;
  out.training = training;
  out.name = name;
  if (const auto* artifacts = json::opt_object(raw, "ModelArtifacts"))
    out.artifacts = json::opt_string(*artifacts, "S3ModelArtifacts").value_or("");
  out.raw = std::move(raw);
  return out;
}

// Another job may have been given the input that was uploaded for this one.
TEST(OldJob, AnInputThatAnotherJobReadsStays) {
  const auto job =
      facts(true, "a", with_input(training_job("a", "Completed"), "train", "s3://uploads/a/input/train"));
  const auto places = [&](const std::vector<JobFacts>& others) {
    std::vector<std::string> out;
    for (const auto& place : old_job(job, kBucket, others).places)
      out.push_back(place.bucket + ":" + place.key);
    return out;
  };
  EXPECT_THAT(places({}), ElementsAre("models:runs/a/", "uploads:a/input/train/"));
  for (const auto* uri :
       {"s3://uploads/a/input/train", "s3://uploads/a/", "s3://uploads/a/input/train/one"}) {
    EXPECT_THAT(places({facts(false, "b", processing_job("b", "in", uri))}), ElementsAre("models:runs/a/"))
        << uri;
  }
  EXPECT_THAT(places({facts(false, "a", processing_job("a", "in", "s3://uploads/a/input/in"))}), SizeIs(2));
}

TEST(OldJob, OnlyWhatMusterUploadedForItIsItsOwn) {
  for (const auto* uri : {"s3://other/a/input/train", "s3://uploads/b/input/train",
                          "s3://uploads/a/input/train/x", "s3://uploads/a/input"}) {
    const auto job = facts(true, "a", with_input({}, "train", uri));
    EXPECT_THAT(old_job(job, kBucket, {}).places, IsEmpty()) << uri;
  }
  // A processing job has written nothing below the output path of a training job of the same name.
  EXPECT_THAT(old_job(facts(false, "a", training_job("a", "Completed")), kBucket, {}).places, IsEmpty());
}

}  // namespace
}  // namespace muster::cli
