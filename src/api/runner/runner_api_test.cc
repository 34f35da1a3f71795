#include "api/runner/runner_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/testing/fake_logs.h"
#include "api/testing/fake_service.h"
#include "base/file.h"
#include "base/json.h"
#include "wire/runner/messages.h"

namespace muster::api {
namespace {

using ::testing::HasSubstr;

class RunnerProtocol : public ::testing::Test {
 protected:
  RunnerProtocol() { service_.live.insert(launch_); }

  net::Response call(const std::string& method, const std::string& action, const std::string& body = "") {
    net::Request request;
    request.head.method = method;
    const auto question = action.find('?');
    request.head.path = "/api/v1/runner/" + to_string(launch_) + "/" + action.substr(0, question);
    if (question != std::string::npos) request.head.query = action.substr(question + 1);
    request.head.headers.set("Authorization", "Bearer " + token_);
    request.body = body;
    auto routed = api_.route(request.head);
    if (auto* refused = std::get_if<net::Response>(&routed)) return std::move(*refused);
    auto& route = std::get<net::Route>(routed);
    if (route.handle) return route.handle(request);
    net::Response answer;
    route.handle_later(std::move(request), [&](net::Response later) { answer = std::move(later); });
    return answer;
  }
  static std::string text(const net::Response& response) { return std::get<std::string>(response.body); }

  TempDir dir_;
  SystemClock clock_;
  testing::FakeService service_;
  testing::FakeLogs logs_;
  Keyring keyring_ = Keyring::load(dir_ / "master").value();
  RunnerApi api_{service_, logs_, keyring_, clock_};
  domain::LaunchId launch_{domain::AttemptId{3}, 1, 1};
  std::string token_ = keyring_.runner_token(launch_, Time{});
};

TEST_F(RunnerProtocol, TakesReportsOfItsOwnLaunch) {
  domain::RankReport report{.launch = launch_, .number = 1, .phase = domain::RankPhase::ready};
  EXPECT_THAT(text(call("POST", "reports", wire::encode(report))), HasSubstr("applied"));
  EXPECT_EQ(service_.reports.at(0).phase, domain::RankPhase::ready);
  report.launch.rank = 0;
  EXPECT_EQ(call("POST", "reports", wire::encode(report)).status, 400);
  EXPECT_EQ(call("POST", "reports", "{").status, 400);
}

TEST_F(RunnerProtocol, TellsAStaleLaunchToGo) {
  service_.live.clear();
  const domain::RankReport report{.launch = launch_};
  EXPECT_EQ(call("POST", "reports", wire::encode(report)).status, 410);
  EXPECT_EQ(call("GET", "commands?after=0").status, 410);
  EXPECT_EQ(call("POST", "logs", wire::encode(wire::LogBatch{})).status, 410);
  EXPECT_EQ(call("GET", "credentials").status, 410);
}

TEST_F(RunnerProtocol, AnswersTheWholeDesiredState) {
  service_.desired.target = domain::Target::run;
  service_.desired.version = 4;
  EXPECT_EQ(wire::decode_desired(text(call("GET", "commands?after=3"))).value(), service_.desired);
  EXPECT_EQ(call("GET", "commands?after=x").status, 400);
}

TEST_F(RunnerProtocol, AppendsLinesToItsStream) {
  const wire::LogBatch batch{0, {{Time{1}, "one"}, {Time{2}, std::string("\xff\0", 2)}}};
  EXPECT_EQ(text(call("POST", "logs", wire::encode(batch))), R"({"next_sequence":2})");
  EXPECT_EQ(logs_.written_to, "/aws/sagemaker/TrainingJobs demo/algo-1-1");
  EXPECT_EQ(logs_.lines.at(1), std::string("\xff\0", 2));
}

TEST_F(RunnerProtocol, CredentialsOpenAsASession) {
  service_.views.push_back({.job = {.name = "demo"}, .request = R"({"RoleArn": "arn:aws:iam::1:role/R"})"});
  const auto answer = json::parse_object(text(call("GET", "credentials"))).value();
  const auto session = keyring_.open_session(json::get_string(answer, "AccessKeyId").value(),
                                             json::get_string(answer, "Token").value());
  ASSERT_TRUE(session);
  EXPECT_EQ(session->launch, launch_);
  EXPECT_EQ(session->role_arn, "arn:aws:iam::1:role/R");
}

TEST_F(RunnerProtocol, RefusesOtherTokensAndPaths) {
  EXPECT_EQ(call("GET", "secrets").status, 404);
  token_ = keyring_.runner_token({domain::AttemptId{3}, 0, 1}, Time{});
  EXPECT_EQ(call("GET", "commands?after=0").status, 401);
  token_ = "";
  EXPECT_EQ(call("GET", "credentials").status, 401);
}

}  // namespace
}  // namespace muster::api
