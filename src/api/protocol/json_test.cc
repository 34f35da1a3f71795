#include "api/protocol/json.h"

#include <gtest/gtest.h>

namespace muster::api {
namespace {

const Caller kCaller{.account = "000000000000", .request_id = "r-1"};

// "status body" of an answer, whose headers are always the same.
std::string text(const net::Response& response) {
  EXPECT_EQ(response.headers.get("Content-Type"), "application/x-amz-json-1.1");
  EXPECT_EQ(response.headers.get("x-amzn-RequestId"), "r-1");
  return std::to_string(response.status) + " " + std::get<std::string>(response.body);
}

std::string run(std::string_view target, std::string_view body) {
  const JsonOperations operations = {
      {"Echo",
       [](const json::Object& request, const Caller& caller) -> ApiResult<json::Object> {
         auto answer = request;
         answer["account"] = caller.account;
         return answer;
       }},
      {"Refuse",
       [](const json::Object&, const Caller&) -> ApiResult<json::Object> {
         return refuse("ResourceInUse", "job \"a\"\nexists");
       }},
      {"Fail",
       [](const json::Object&, const Caller&) -> ApiResult<json::Object> {
         return refuse(Error{ErrorCode::unavailable, "the store failed"});
       }},
  };
  return text(run_json(operations, "Service.", target, body, kCaller));
}

TEST(JsonProtocol, RunsTheOperationThatTheTargetNames) {
  EXPECT_EQ(run("Service.Echo", R"({"a": [1, null]})"), R"(200 {"a":[1,null],"account":"000000000000"})");
  EXPECT_EQ(run("Service.Echo", ""), R"(200 {"account":"000000000000"})");
}

TEST(JsonProtocol, ErrorsAreEnvelopesThatSdksParse) {
  EXPECT_EQ(run("Service.Refuse", "{}"), R"(400 {"__type":"ResourceInUse","message":"job \"a\"\nexists"})");
  EXPECT_EQ(run("Service.Fail", "{}"), R"(503 {"__type":"ServiceUnavailable","message":"the store failed"})");
}

TEST(JsonProtocol, UnknownOperationsNameTheKnownOnes) {
  for (const std::string target : {"Service.Delete", "Other.Echo", "Echo", "Service.", "Service.echo", ""}) {
    EXPECT_EQ(run(target, "{}"),
              R"(400 {"__type":"UnknownOperationException","message":"X-Amz-Target is \")" + target +
                  R"(\"; this service answers Echo, Fail, Refuse"})");
  }
  EXPECT_LT(run("Service." + std::string(5000, 'x'), "{}").size(), 300U);
}

TEST(JsonProtocol, MalformedBodiesAreNotSerialized) {
  for (const auto* body : {"{", "[]", "null", "1", R"({"a":1}})", "\xff\xfe", R"({"a":"\ud800"})", "a=b"}) {
    const auto answer = run("Service.Echo", body);
    EXPECT_EQ(answer.rfind(R"(400 {"__type":"SerializationException","message":")", 0), 0U) << answer;
  }
  EXPECT_EQ(run("Service.Echo", std::string(10'000, '[')).substr(0, 37),
            R"(400 {"__type":"SerializationException)");
}

TEST(JsonProtocol, EveryKindOfErrorHasACodeAndAStatus) {
  const auto spelled = [](ErrorCode code) {
    const auto [name, status] = spell(code);
    return std::to_string(status) + " " + std::string(name);
  };
  EXPECT_EQ(spelled(ErrorCode::invalid_argument), "400 ValidationException");
  EXPECT_EQ(spelled(ErrorCode::failed_precondition), "400 ValidationException");
  EXPECT_EQ(spelled(ErrorCode::not_found), "400 ResourceNotFoundException");
  EXPECT_EQ(spelled(ErrorCode::already_exists), "400 ResourceInUse");
  EXPECT_EQ(spelled(ErrorCode::unsupported), "400 UnknownOperationException");
  EXPECT_EQ(spelled(ErrorCode::permission_denied), "403 AccessDeniedException");
  EXPECT_EQ(spelled(ErrorCode::unauthenticated), "403 InvalidSignatureException");
  EXPECT_EQ(spelled(ErrorCode::resource_exhausted), "429 ThrottlingException");
  // SDKs retry these.
  for (const auto code : {ErrorCode::unavailable, ErrorCode::timeout, ErrorCode::cancelled}) {
    EXPECT_EQ(spelled(code), "503 ServiceUnavailable");
  }
  for (const auto code : {ErrorCode::io, ErrorCode::no_space, ErrorCode::corrupt, ErrorCode::internal}) {
    EXPECT_EQ(spelled(code), "500 InternalFailure");
  }
}

}  // namespace
}  // namespace muster::api
