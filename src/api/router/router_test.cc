#include "api/router/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/testing/fake_logs.h"
#include "api/testing/fake_service.h"
#include "base/file.h"
#include "data/objectstore/object_store.h"

namespace muster::api {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class FixedClock final : public Clock {
 public:
  Time now() const override { return time; }
  Time time{1'796'000'000'000};
};

JsonOperations one_operation(const std::string& name) {
  return {{name, [name](const json::Object&, const Caller& caller) -> ApiResult<json::Object> {
             json::Object answer;
             answer["ran"] = name;
             answer["region"] = caller.region;
             return answer;
           }}};
}

struct Sent {
  std::string method = "POST";
  std::string target = "/";
  std::string body;
  net::Headers headers;
};

class Routing : public ::testing::Test {
 protected:
  Routing() {
    key_ = keyring_.make_key("root", clock_.time);
    service_.keys[key_.record.id] = key_.record;
  }

  static net::RequestHead head_of(const Sent& sent) {
    net::RequestHead head;
    head.method = sent.method;
    const auto question = sent.target.find('?');
    head.path = sent.target.substr(0, question);
    if (question != std::string::npos) head.query = sent.target.substr(question + 1);
    head.headers = sent.headers;
    head.headers.set("Host", "127.0.0.1:9000");
    head.content_length = sent.body.size();
    return head;
  }
  net::RequestHead signed_head(const Sent& sent, std::string_view service,
                               const wire::sigv4::Credentials& credentials) {
    auto head = head_of(sent);
    const auto hash = service == "s3" ? std::string(wire::sigv4::kUnsignedPayload)
                                      : wire::sigv4::payload_hash_of(sent.body);
    for (const auto& [name, value] :
         wire::sigv4::sign(view_of(head), credentials, "eu-west-1", service, clock_.time, hash)) {
      head.headers.set(name, value);
    }
    return head;
  }

  // "status body" of what the router and then the route answer.
  std::string answer(const net::RequestHead& head, const std::string& body = "") {
    auto routed = router_.route(head);
    if (auto* refused = std::get_if<net::Response>(&routed)) return text(*refused);
    net::Request request{.head = head, .body = body};
    return text(std::get<net::Route>(routed).handle(request));
  }
  std::string send(const Sent& sent, std::string_view service) {
    return answer(signed_head(sent, service, key_.credentials), sent.body);
  }
  std::string send_unsigned(const Sent& sent) { return answer(head_of(sent), sent.body); }
  // GET by a URL that carries its signature.
  std::string presigned(const std::string& path) {
    auto head = head_of({.method = "GET", .target = path});
    head.query = wire::sigv4::presign(view_of(head), key_.credentials, "eu-west-1", "s3", clock_.time,
                                      std::chrono::minutes(1));
    return answer(head);
  }
  static std::string text(const net::Response& response) {
    return std::to_string(response.status) + " " + std::get<std::string>(response.body);
  }
  static net::Headers target(std::string_view name) {
    net::Headers headers;
    headers.set("X-Amz-Target", name);
    return headers;
  }

  TempDir folder_;
  FixedClock clock_;
  testing::FakeService service_;
  testing::FakeLogs logs_;
  Keyring keyring_ = Keyring::load(folder_ / "master").value();
  Keyring::NewKey key_;
  std::unique_ptr<ports::ObjectStore> objects_ =
      objectstore::open({.directory = folder_ / "objects", .sync = false, .readers = 1}).value();
  Authenticator authenticator_{
      service_, keyring_, clock_, {.account = "123456789012", .region = "us-east-1"}};
  s3::S3Service s3_{*objects_, {}};
  RunnerApi runner_{service_, logs_, keyring_, clock_};
  ManageApi manage_{service_, *objects_, {"1.2.3", "/data", [] { return domain::Inventory{}; }}};
  Router router_{authenticator_,
                 {one_operation("CreateTrainingJob"), one_operation("GetLogEvents"), s3_, runner_, manage_}};
};

TEST_F(Routing, TheCredentialScopeChoosesTheService) {
  EXPECT_EQ(send({.headers = target("SageMaker.CreateTrainingJob")}, "sagemaker"),
            R"(200 {"ran":"CreateTrainingJob","region":"us-east-1"})");
  EXPECT_EQ(send({.headers = target("Logs_20140328.GetLogEvents")}, "logs"),
            R"(200 {"ran":"GetLogEvents","region":"us-east-1"})");
  EXPECT_THAT(send({.body = "Action=GetCallerIdentity"}, "sts"),
              HasSubstr("<Account>123456789012</Account>"));
  EXPECT_THAT(send({.method = "GET", .target = "/?Action=GetCallerIdentity"}, "sts"), StartsWith("200 "));
  EXPECT_THAT(send({.body = "Action=GetRole&RoleName=r"}, "iam"), HasSubstr("<RoleName>r</RoleName>"));
  EXPECT_THAT(send({.method = "GET", .target = "/"}, "s3"), HasSubstr("<ListAllMyBucketsResult"));
  EXPECT_THAT(send({.method = "GET", .target = "/api/v1/nodes"}, "muster"), StartsWith("200 {\"nodes\""));
}

TEST_F(Routing, BucketsMayBeNamedLikeOurPaths) {
  for (const auto* path : {"/api", "/healthz"}) {
    EXPECT_EQ(send({.method = "PUT", .target = path}, "s3"), "200 ") << path;
  }
  EXPECT_THAT(send({.method = "GET", .target = "/api/v1/nodes"}, "s3"), HasSubstr("<Code>NoSuchKey</Code>"));
  EXPECT_THAT(send({.method = "GET", .target = "/api/v1/runner/a1-r0-i1/credentials"}, "s3"),
              HasSubstr("<Code>NoSuchKey</Code>"));
  EXPECT_THAT(send({.method = "GET", .target = "/healthz"}, "s3"), HasSubstr("<Name>healthz</Name>"));
  EXPECT_THAT(presigned("/healthz"), HasSubstr("<Name>healthz</Name>"));
  EXPECT_THAT(presigned("/api/v1/runner/a1-r0-i1/credentials"), HasSubstr("<Code>NoSuchKey</Code>"));
}

TEST_F(Routing, UnsignedIsOnlyHealth) {
  EXPECT_EQ(send_unsigned({.method = "GET", .target = "/healthz"}), "200 ok\n");
  EXPECT_THAT(send_unsigned({.method = "HEAD", .target = "/healthz"}), StartsWith("200 "));
  EXPECT_THAT(send_unsigned({.method = "POST", .target = "/healthz"}), StartsWith("403 "));
  EXPECT_THAT(
      send_unsigned({.method = "GET", .target = "/bucket/key"}),
      MatchesRegex("403 <\\?xml .*<Code>AccessDenied</Code>.*<RequestId>[0-9a-f-]{36}</RequestId>.*"));
  const std::string refused =
      R"(403 {"__type":"MissingAuthenticationToken",)"
      R"("message":"the request is not signed; sign it with the keys of `muster env`"})";
  EXPECT_EQ(send_unsigned({.headers = target("SageMaker.CreateTrainingJob")}), refused);
  EXPECT_EQ(send_unsigned({.method = "GET", .target = "/api/v1/nodes"}), refused);
}

TEST_F(Routing, RunnersHaveTokensOfTheirOwn) {
  Sent sent{.method = "GET", .target = "/api/v1/runner/a1-r0-i1/commands?after=0"};
  EXPECT_THAT(send_unsigned(sent), StartsWith("401 "));
  const domain::LaunchId launch{domain::AttemptId{1}, 0, 1};
  sent.headers.set("Authorization", "Bearer " + keyring_.runner_token(launch, clock_.time));
  EXPECT_THAT(send_unsigned({.method = "GET", .target = "/api/v1/nodes", .headers = sent.headers}),
              StartsWith("400 {\"__type\":\"IncompleteSignature\""));
  const auto routed = router_.route(head_of(sent));
  ASSERT_TRUE(std::holds_alternative<net::Route>(routed));
  EXPECT_TRUE(std::get<net::Route>(routed).handle_later);
}

TEST_F(Routing, PresignedUrlsNeedNoHeader) {
  ASSERT_EQ(send({.method = "PUT", .target = "/bucket"}, "s3"), "200 ");
  auto head = head_of({.method = "GET", .target = "/bucket"});
  head.query = wire::sigv4::presign(view_of(head), key_.credentials, "eu-west-1", "s3", clock_.time,
                                    std::chrono::minutes(1));
  EXPECT_THAT(answer(head), HasSubstr("<Name>bucket</Name>"));
  head.path = "/other";
  EXPECT_THAT(answer(head), MatchesRegex("403 <\\?xml .*<Code>SignatureDoesNotMatch</Code>.*"));
}

TEST_F(Routing, UnknownServicesAndOperationsNameTheKnown) {
  EXPECT_EQ(send({.body = "Action=DescribeInstances"}, "ec2"),
            R"(400 {"__type":"UnknownOperationException",)"
            R"("message":"service \"ec2\" is not one of sagemaker, logs, s3, sts, iam"})");
  EXPECT_EQ(send({.headers = target("Logs_20140328.GetLogEvents")}, "sagemaker"),
            R"(400 {"__type":"UnknownOperationException","message":"X-Amz-Target is )"
            R"(\"Logs_20140328.GetLogEvents\"; this service answers CreateTrainingJob"})");
  EXPECT_THAT(send({.body = "Action=DeleteRole"}, "iam"), HasSubstr("<Code>InvalidAction</Code>"));
  EXPECT_THAT(send({.method = "GET", .target = "/api/v1/other"}, "muster"), StartsWith("404 "));
}

TEST_F(Routing, JobsMayNotManageTheService) {
  const domain::LaunchId launch{domain::AttemptId{1}, 0, 1};
  service_.live.insert(launch);
  const auto session = keyring_.make_session(launch, "arn:aws:iam::123456789012:role/Train",
                                             clock_.time + std::chrono::hours(1));
  for (const auto* path : {"/api/v1/service", "/api/v1/nodes", "/api/v1/prune", "/api/v1/other"}) {
    for (const auto* method : {"GET", "POST"}) {
      EXPECT_EQ(answer(signed_head({.method = method, .target = path}, "muster", session.credentials)),
                R"(403 {"__type":"AccessDeniedException",)"
                R"("message":"the credentials of a job are not good for managing the service"})");
    }
  }
  EXPECT_EQ(service_.pruned_before, std::nullopt);
  EXPECT_THAT(answer(signed_head({.method = "GET"}, "s3", session.credentials)), StartsWith("200 "));
}

TEST_F(Routing, TheBodyIsSigned) {
  const auto head = signed_head({.body = "{}", .headers = target("SageMaker.CreateTrainingJob")}, "sagemaker",
                                key_.credentials);
  EXPECT_THAT(answer(head, "{}"), StartsWith("200 "));
  EXPECT_THAT(answer(head, "{ }"), StartsWith(R"(403 {"__type":"InvalidSignatureException","message":")"));
}

TEST_F(Routing, MalformedBodiesAreRefusedInTheProtocolOfTheService) {
  EXPECT_THAT(send({.body = "{", .headers = target("SageMaker.CreateTrainingJob")}, "sagemaker"),
              StartsWith(R"(400 {"__type":"SerializationException","message":")"));
  EXPECT_THAT(send({.target = "/api/v1/prune", .body = "[]"}, "muster"),
              StartsWith(R"(400 {"__type":"ValidationException","message":")"));
  EXPECT_THAT(send({.body = "%%%"}, "sts"), HasSubstr("<Code>InvalidAction</Code>"));
}

TEST_F(Routing, TooLargeBodiesAreRefusedInTheProtocolOfTheService) {
  const auto refused = [&](std::string_view service) {
    const auto route = std::get<net::Route>(router_.route(signed_head({}, service, key_.credentials)));
    EXPECT_EQ(route.body_max, 4U << 20) << service;
    const auto response = route.refuse(413, "too large");
    const auto id = response.headers.get(service == "s3" ? "x-amz-request-id" : "x-amzn-RequestId");
    EXPECT_EQ(id.size(), 36U) << service;
    auto out = text(response);
    if (const auto at = out.find(id); at != std::string::npos) out.replace(at, id.size(), "ID");
    return out;
  };
  const std::string json = R"(413 {"__type":"RequestEntityTooLarge","message":"too large"})";
  EXPECT_EQ(refused("sagemaker"), json);
  EXPECT_EQ(refused("logs"), json);
  EXPECT_EQ(refused("muster"), json);
  EXPECT_EQ(refused("sts"),
            "413 <ErrorResponse><Error><Type>Sender</Type><Code>RequestEntityTooLarge</Code>"
            "<Message>too large</Message></Error><RequestId>ID</RequestId></ErrorResponse>");
  EXPECT_EQ(refused("s3"),
            "413 <?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>EntityTooLarge</Code>"
            "<Message>too large</Message><Resource>/</Resource><RequestId>ID</RequestId>"
            "<HostId>muster</HostId></Error>");
}

// Before anything is known of the caller, the head tells which protocol its client parses.
TEST_F(Routing, StrangersAreRefusedInTheProtocolOfTheService) {
  auto stranger = key_.credentials;
  stranger.access_key = "AKIASTRANGER";
  const std::string said =
      "access key AKIASTRANGER is not known here; the exports of `muster env` are good for "
      "this service";
  EXPECT_EQ(answer(signed_head({}, "sagemaker", stranger)),
            R"(403 {"__type":"InvalidClientTokenId","message":")" + said + "\"}");
  EXPECT_EQ(answer(signed_head({.target = "/api/v1/prune"}, "muster", stranger)),
            R"(403 {"__type":"InvalidClientTokenId","message":")" + said + "\"}");
  EXPECT_THAT(
      answer(signed_head({}, "iam", stranger)),
      MatchesRegex("403 <ErrorResponse><Error><Type>Sender</Type><Code>InvalidClientTokenId</Code><Message>" +
                   said + "</Message></Error><RequestId>[0-9a-f-]{36}</RequestId></ErrorResponse>"));
  EXPECT_THAT(answer(signed_head({.method = "GET"}, "s3", stranger)),
              MatchesRegex("403 <\\?xml .*<Code>InvalidAccessKeyId</Code>.*"));
  auto presigned = head_of({.method = "GET", .target = "/"});
  presigned.query = wire::sigv4::presign(view_of(presigned), stranger, "us-east-1", "sts", clock_.time,
                                         std::chrono::minutes(1));
  EXPECT_THAT(answer(presigned), HasSubstr("<ErrorResponse><Error><Type>Sender</Type>"));
}

}  // namespace
}  // namespace muster::api
