#include "api/auth/auth.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "api/testing/fake_service.h"
#include "base/file.h"

namespace muster::api {
namespace {

class FixedClock final : public Clock {
 public:
  Time now() const override { return time; }
  Time time{1'796'000'000'000};
};

class Auth : public ::testing::Test {
 protected:
  Auth() {
    key_ = keyring_.make_key("root", clock_.time);
    service_.keys[key_.record.id] = key_.record;
  }

  net::RequestHead signed_head(const wire::sigv4::Credentials& credentials, Time when,
                               std::string_view service = "sagemaker",
                               std::string_view region = "eu-west-1") {
    net::RequestHead head;
    head.method = "POST";
    head.path = "/";
    head.headers.set("Host", "127.0.0.1:9000");
    head.headers.set("X-Amz-Target", "SageMaker.ListTrainingJobs");
    for (const auto& [name, value] :
         wire::sigv4::sign(view_of(head), credentials, region, service, when, hash_)) {
      head.headers.set(name, value);
    }
    return head;
  }
  std::string refusal(const net::RequestHead& head) {
    const auto signer = auth_.identify(head);
    if (!signer) return signer.error().code;
    const auto verified = auth_.verify(*signer, head, hash_);
    return verified ? "ok" : verified.error().code;
  }

  TempDir dir_;
  FixedClock clock_;
  testing::FakeService service_;
  Keyring keyring_ = Keyring::load(dir_ / "master").value();
  Keyring::NewKey key_;
  Authenticator auth_{service_, keyring_, clock_, {.account = "000000000000", .region = "us-east-1"}};
  std::string hash_ = wire::sigv4::payload_hash_of("{}");
};

TEST_F(Auth, KnowsItsOwnKeys) {
  const auto head = signed_head(key_.credentials, clock_.time);
  EXPECT_EQ(refusal(head), "ok");
  const auto signer = auth_.identify(head).value();
  EXPECT_EQ(signer.caller.account, "000000000000");
  EXPECT_EQ(signer.caller.arn, "arn:aws:iam::000000000000:user/root");
}

// Else a job would be described by another ARN than it was created with.
TEST_F(Auth, EveryRegionIsAcceptedAndTheServicesOwnIsMeant) {
  for (const auto* region : {"us-east-1", "eu-west-1", "xx-nowhere-9"}) {
    const auto head = signed_head(key_.credentials, clock_.time, "sagemaker", region);
    EXPECT_EQ(refusal(head), "ok");
    EXPECT_EQ(auth_.identify(head)->caller.region, "us-east-1") << region;
  }
}

TEST_F(Auth, RefusesInTheWordsOfAws) {
  net::RequestHead unsigned_head;
  EXPECT_EQ(refusal(unsigned_head), "MissingAuthenticationToken");
  auto wrong = key_.credentials;
  wrong.secret_key += "x";
  EXPECT_EQ(refusal(signed_head(wrong, clock_.time)), "InvalidSignatureException");
  EXPECT_EQ(refusal(signed_head(wrong, clock_.time, "s3")), "SignatureDoesNotMatch");
  auto stranger = key_.credentials;
  stranger.access_key = "AKIAAAAAAAAAAAAAAAAA";
  EXPECT_EQ(refusal(signed_head(stranger, clock_.time)), "InvalidClientTokenId");
  EXPECT_EQ(refusal(signed_head(stranger, clock_.time, "s3")), "InvalidAccessKeyId");
  EXPECT_EQ(refusal(signed_head(key_.credentials, clock_.time - std::chrono::minutes(16))),
            "InvalidSignatureException");
  EXPECT_EQ(refusal(signed_head(key_.credentials, clock_.time + std::chrono::minutes(16), "s3")),
            "RequestTimeTooSkewed");
  auto tampered = signed_head(key_.credentials, clock_.time);
  tampered.path = "/other";
  EXPECT_EQ(refusal(tampered), "InvalidSignatureException");
}

TEST_F(Auth, SessionsLiveAsLongAsTheirLaunch) {
  const domain::LaunchId launch{domain::AttemptId{1}, 0, 1};
  const auto session = keyring_.make_session(launch, "arn:aws:iam::000000000000:role/Train",
                                             clock_.time + std::chrono::hours(1));
  EXPECT_EQ(refusal(signed_head(session.credentials, clock_.time)), "ExpiredTokenException");
  service_.live.insert(launch);
  EXPECT_EQ(refusal(signed_head(session.credentials, clock_.time)), "ok");
  EXPECT_EQ(auth_.identify(signed_head(session.credentials, clock_.time))->caller.arn,
            "arn:aws:sts::000000000000:assumed-role/Train/a1-r0-i1");
  clock_.time = clock_.time + std::chrono::hours(2);
  EXPECT_EQ(refusal(signed_head(session.credentials, clock_.time, "s3")), "ExpiredToken");
  auto forged = session.credentials;
  forged.session_token.back() = forged.session_token.back() == 'A' ? 'B' : 'A';
  forged.session_token.front() = forged.session_token.front() == 'A' ? 'B' : 'A';
  EXPECT_EQ(refusal(signed_head(forged, clock_.time)), "UnrecognizedClientException");
}

TEST_F(Auth, TokensOpenOnlyForWhatTheyWereMade) {
  const domain::LaunchId launch{domain::AttemptId{7}, 1, 2};
  const auto token = keyring_.runner_token(launch, clock_.time);
  EXPECT_EQ(keyring_.open_runner_token(token).value(), launch);
  EXPECT_FALSE(keyring_.open_runner_token("x" + token));
  EXPECT_FALSE(keyring_.open_runner_token(""));
  const TempDir other;
  EXPECT_FALSE(Keyring::load(other / "master")->open_runner_token(token));
}

TEST_F(Auth, MasterKeyIsKeptPrivate) {
  EXPECT_EQ(Keyring::load(dir_ / "master")->secret_of(key_.record).value(), key_.credentials.secret_key);
  ASSERT_EQ(::chmod((dir_ / "master").c_str(), 0644), 0);
  EXPECT_EQ(Keyring::load(dir_ / "master").error().code, ErrorCode::permission_denied);
  ASSERT_TRUE(write_file_atomic(dir_ / "short", "abc", 0600));
  EXPECT_EQ(Keyring::load(dir_ / "short").error().code, ErrorCode::corrupt);
}

}  // namespace
}  // namespace muster::api
