#include "api/manage/manage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/testing/fake_service.h"
#include "base/file.h"
#include "data/objectstore/object_store.h"

namespace muster::api {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::hours kDay{24};

class Manage : public ::testing::Test {
 protected:
  Manage() { EXPECT_TRUE(objects_->create_bucket({"bucket", "us-east-1", Time{1}})); }

  net::Response call(const std::string& method, const std::string& path, std::string_view body = "") {
    net::RequestHead head;
    head.method = method;
    head.path = path;
    return manage_.run(head, body, caller_);
  }
  // "status body"
  std::string text(const std::string& method, const std::string& path, std::string_view body = "") {
    const auto response = call(method, path, body);
    EXPECT_EQ(response.headers.get("x-amzn-RequestId"), "r-1");
    return std::to_string(response.status) + " " + std::get<std::string>(response.body);
  }
  std::string prune(std::int64_t seconds) {
    return text("POST", "/api/v1/prune", R"({"older_than_seconds": )" + std::to_string(seconds) + "}");
  }
  void begin_upload(Millis age) {
    ASSERT_TRUE(objects_->create_upload("bucket", "k", {}, caller_.now - age));
  }

  TempDir folder_;
  testing::FakeService service_;
  std::unique_ptr<ports::ObjectStore> objects_ =
      objectstore::open({.directory = folder_ / "objects", .sync = false, .readers = 1}).value();
  Result<domain::Inventory> inventory_ = domain::Inventory{.nodes = {},
                                                           .isolation = {"mount namespace"},
                                                           .not_isolated = {"memory: no cgroup"},
                                                           .in_words = {"Jobs run as ada"}};
  ManageApi manage_{service_, *objects_, {"1.2.3", "/data", [this] { return inventory_; }}};
  Caller caller_{.account = "123456789012", .request_id = "r-1", .now = Time{1'796'000'000'000}};
};

TEST_F(Manage, TellsTheFactsOfTheService) {
  EXPECT_EQ(
      text("GET", "/api/v1/service"),
      R"(200 {"version":"1.2.3","account":"123456789012","data_directory":"/data",)"
      R"("isolation":["mount namespace"],"not_isolated":["memory: no cgroup"],"in_words":["Jobs run as ada"]})");
  inventory_ = fail(ErrorCode::unavailable, "the engine is starting");
  EXPECT_EQ(text("GET", "/api/v1/service"),
            R"(503 {"__type":"ServiceUnavailable","message":"the engine is starting"})");
}

TEST_F(Manage, ListsNodesAndWhatTheyDo) {
  EXPECT_EQ(text("GET", "/api/v1/nodes"), R"(200 {"nodes":[]})");
  const domain::Node node{.name = "n1",
                          .cpus = 2,
                          .memory_bytes = 1024,
                          .address = "127.77.0.1",
                          .healthy = false,
                          .message = "why"};
  service_.node_views = {{node, "demo", 1}, {node, "", 0}};
  const std::string both = R"("name":"n1","cpus":2,"memory_bytes":1024,"address":"127.77.0.1",)"
                           R"("healthy":false,"message":"why")";
  EXPECT_EQ(text("GET", "/api/v1/nodes"),
            R"(200 {"nodes":[{)" + both + R"(,"job":"demo","rank":1},{)" + both + "}]}");
}

TEST_F(Manage, PruneForgetsJobsThatEndedBeforeTheLimit) {
  for (const auto kind : {domain::JobKind::training, domain::JobKind::processing}) {
    auto& job = service_.views.emplace_back().job;
    job.kind = kind;
    job.name = "old";
  }
  service_.prune_left = 7;
  EXPECT_EQ(prune(86'400), R"(200 {"pruned":[{"kind":"training","name":"old"},)"
                           R"({"kind":"processing","name":"old"}],"left":7,"uploads_aborted":0})");
  EXPECT_EQ(service_.pruned_before, caller_.now - kDay);
}

TEST_F(Manage, PruneOfNamedJobsForgetsOnlyThese) {
  EXPECT_THAT(prune(0), HasSubstr("200 "));
  EXPECT_EQ(service_.pruned_only, std::nullopt);
  const std::string jobs = R"([{"kind":"training","name":"a"},{"kind":"processing","name":"a"}])";
  EXPECT_THAT(text("POST", "/api/v1/prune", R"({"older_than_seconds": 0, "jobs": )" + jobs + "}"),
              HasSubstr("200 "));
  const std::set<control::JobName> both = {{domain::JobKind::training, "a"},
                                           {domain::JobKind::processing, "a"}};
  EXPECT_EQ(service_.pruned_only, both);
  service_.pruned_only.reset();
  for (const std::string bad :
       {"null", "{}", "[1]", R"([{"kind":"training"}])", R"([{"kind":"x","name":"a"}])"}) {
    EXPECT_THAT(text("POST", "/api/v1/prune", R"({"older_than_seconds": 0, "jobs": )" + bad + "}"),
                HasSubstr("jobs must be a list of "))
        << bad;
  }
  EXPECT_EQ(service_.pruned_only, std::nullopt);
}

TEST_F(Manage, PruneAbortsUploadsOlderThanTheLimit) {
  begin_upload(kDay + Millis{1});
  begin_upload(2 * kDay);
  begin_upload(kDay);
  EXPECT_THAT(prune(86'400), HasSubstr(R"("uploads_aborted":2)"));
  EXPECT_EQ(objects_->list_uploads("bucket", {})->uploads.size(), 1U);
}

// `--older-than 0s` is for jobs that have ended; an upload of the last hour may still be going on.
TEST_F(Manage, PruneLeavesUploadsOfTheLastHour) {
  begin_upload(std::chrono::minutes(59));
  begin_upload(std::chrono::minutes(61));
  EXPECT_THAT(prune(0), HasSubstr(R"("uploads_aborted":1)"));
  EXPECT_EQ(service_.pruned_before, caller_.now);
}

TEST_F(Manage, PruneNeedsALimit) {
  for (const auto* body : {"{}", R"({"older_than_seconds": -1})", R"({"older_than_seconds": 1.5})",
                           R"({"older_than_seconds": "7"})", R"({"older_than_seconds": 315360001})"}) {
    EXPECT_EQ(text("POST", "/api/v1/prune", body),
              R"(400 {"__type":"ValidationException",)"
              R"("message":"older_than_seconds must be a whole number from 0 to 315360000"})")
        << body;
  }
  EXPECT_THAT(text("POST", "/api/v1/prune", "{"), HasSubstr("400 {\"__type\":\"ValidationException\""));
  EXPECT_EQ(service_.pruned_before, std::nullopt);
}

TEST_F(Manage, UnknownPathsNameTheKnownOnes) {
  for (const std::string path : {"/api/v1/other", "/api/v1/prune", "/api/v1/nodes/", "/"}) {
    EXPECT_EQ(text("GET", path), R"(404 {"__type":"NotFound","message":"GET )" + path +
                                     R"( is not one of GET /api/v1/service, GET /api/v1/nodes, )"
                                     R"(POST /api/v1/prune"})");
  }
  EXPECT_EQ(call("DELETE", "/api/v1/nodes").status, 404);
}

}  // namespace
}  // namespace muster::api
