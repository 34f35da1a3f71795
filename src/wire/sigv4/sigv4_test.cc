#include "wire/sigv4/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"

namespace muster::wire::sigv4 {
namespace {

using ::testing::HasSubstr;

struct Message {
  std::string method, path, query, body;
  std::vector<std::pair<std::string, std::string>> headers;
  RequestView view() const { return {method, path, query, headers}; }
};

struct Vector {
  std::string name;
  std::map<std::string, std::string> facts;
  std::map<std::string, Message> messages;  // "signed", "presigned"
};

void add_line(Message& message, std::string_view line, bool& in_body) {
  if (message.method.empty()) {
    const auto first = line.find(' ');
    const auto last = line.rfind(' ');
    message.method = line.substr(0, first);
    const auto target = line.substr(first + 1, last - first - 1);
    const auto mark = target.find('?');
    message.path = target.substr(0, mark);
    if (mark != std::string_view::npos) message.query = target.substr(mark + 1);
  } else if (in_body) {
    message.body += line;
  } else if (line.empty()) {
    in_body = true;
  } else if (line[0] == ' ') {
    message.headers.back().second += "\n" + std::string(line);
  } else {
    const auto colon = line.find(':');
    message.headers.emplace_back(line.substr(0, colon), line.substr(colon + 1));
  }
}

std::vector<Vector> load(const std::string& file) {
  const auto text = read_file(std::string(MUSTER_SOURCE_DIR) + "/src/wire/sigv4/testdata/" + file);
  EXPECT_TRUE(text.has_value());
  std::vector<Vector> vectors;
  Message* message = nullptr;
  bool in_body = false;
  for (const auto line : split(*text, '\n')) {
    if (line.starts_with("-- ")) {
      const auto what = line.substr(3);
      message = what == "end" ? nullptr : &vectors.back().messages[std::string(what)];
      in_body = false;
    } else if (message != nullptr) {
      add_line(*message, line, in_body);
    } else if (line.starts_with("vector ")) {
      vectors.push_back({std::string(line.substr(7)), {}, {}});
    } else if (!line.empty() && line[0] != '#') {
      vectors.back().facts[std::string(line.substr(0, line.find(' ')))] = line.substr(line.find(' ') + 1);
    }
  }
  return vectors;
}

std::string hash_for(const Claim& claim, const Message& message) {
  return claim.payload_hash.empty() ? payload_hash_of(message.body) : claim.payload_hash;
}

constexpr std::string_view kSuiteSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
constexpr std::string_view kS3Secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

TEST(AwsSuite, EverySignedRequestVerifiesAndNoneWithAnotherSecret) {
  const auto vectors = load("aws_suite.txt");
  ASSERT_EQ(vectors.size(), 38U);
  for (const auto& vector : vectors) {
    if (vector.facts.at("normalize") == "no") continue;
    SCOPED_TRACE(vector.name);
    const auto& message = vector.messages.at("signed");
    const auto claim = parse(message.view());
    ASSERT_TRUE(claim && *claim) << (claim ? "unsigned" : claim.error().message);
    EXPECT_EQ((*claim)->access_key, "AKIDEXAMPLE");
    EXPECT_EQ((*claim)->signature, vector.facts.at("signature"));
    const auto hash = hash_for(**claim, message);
    const auto canonical =
        canonical_request(message.view(), (*claim)->scope, (*claim)->signed_headers, Scheme::header, hash);
    EXPECT_EQ(payload_hash_of(canonical), vector.facts.at("canonical-hash")) << canonical;
    const auto verified = verify(**claim, kSuiteSecret, message.view(), hash);
    EXPECT_TRUE(verified) << verified.error().message;
    EXPECT_EQ(verify(**claim, "another", message.view(), hash).error().code, ErrorCode::unauthenticated);
  }
}

TEST(AwsSuite, EveryPresignedRequestVerifies) {
  for (const auto& vector : load("aws_suite.txt")) {
    // Its token is added after signing: a query cannot say that.
    if (vector.facts.at("normalize") == "no" || vector.name == "post-sts-header-after") continue;
    SCOPED_TRACE(vector.name);
    const auto& message = vector.messages.at("presigned");
    const auto claim = parse(message.view());
    ASSERT_TRUE(claim && *claim) << (claim ? "unsigned" : claim.error().message);
    EXPECT_EQ((*claim)->scheme, Scheme::query);
    const auto verified = verify(**claim, kSuiteSecret, message.view(), hash_for(**claim, message));
    EXPECT_TRUE(verified) << canonical_request(message.view(), (*claim)->scope, (*claim)->signed_headers,
                                               Scheme::query, hash_for(**claim, message));
  }
}

// The suite signs them for the service "service", where our rule follows the name s3: compare the path line.
TEST(AwsSuite, UnnormalizedPathsStayAsTheyAre) {
  int seen = 0;
  for (const auto& vector : load("aws_suite.txt")) {
    if (vector.facts.at("normalize") == "yes") continue;
    SCOPED_TRACE(vector.name);
    const auto& message = vector.messages.at("signed");
    const auto claim = parse(message.view());
    ASSERT_TRUE(claim && *claim);
    const auto canonical = canonical_request(message.view(), {"", "", "s3"}, (*claim)->signed_headers,
                                             Scheme::header, hash_for(**claim, message));
    EXPECT_EQ(payload_hash_of(canonical), vector.facts.at("canonical-hash")) << canonical;
    ++seen;
  }
  EXPECT_EQ(seen, 7);
}

TEST(S3Examples, Verify) {
  const auto vectors = load("s3_examples.txt");
  ASSERT_EQ(vectors.size(), 5U);
  for (const auto& vector : vectors) {
    SCOPED_TRACE(vector.name);
    const auto& message = vector.messages.begin()->second;
    const auto claim = parse(message.view());
    ASSERT_TRUE(claim && *claim) << (claim ? "unsigned" : claim.error().message);
    EXPECT_EQ((*claim)->scope, (Scope{"20130524", "us-east-1", "s3"}));
    if ((*claim)->scheme == Scheme::header) {
      EXPECT_EQ((*claim)->payload_hash, payload_hash_of(message.body));
    } else {
      EXPECT_EQ((*claim)->payload_hash, kUnsignedPayload);
    }
    const auto verified = verify(**claim, kS3Secret, message.view(), (*claim)->payload_hash);
    EXPECT_TRUE(verified) << canonical_request(message.view(), (*claim)->scope, (*claim)->signed_headers,
                                               (*claim)->scheme, (*claim)->payload_hash);
  }
}

const Credentials kCredentials{"AKIDEXAMPLE", std::string(kSuiteSecret), "the/session+token=="};
const Time kNow = *parse_compact("20261129T164158Z");

Message signed_put(std::string path, std::string query, std::string_view service) {
  Message message{"PUT", std::move(path), std::move(query), "body", {}};
  message.headers = {{"Host", "127.0.0.1:9"}, {"Content-Type", "text/plain"}, {"User-Agent", "x"}};
  for (auto& header :
       sign(message.view(), kCredentials, "us-east-1", service, kNow, payload_hash_of(message.body))) {
    message.headers.push_back(std::move(header));
  }
  return message;
}

Result<void> check(const Message& message, std::string_view secret = kSuiteSecret) {
  MUSTER_TRY(const auto claim, parse(message.view()));
  if (!claim) return fail(ErrorCode::internal, "unsigned");
  return verify(*claim, secret, message.view(), hash_for(*claim, message));
}

TEST(Sign, WhatIsSignedVerifiesAndAnyChangeIsSeen) {
  for (const auto* service : {"s3", "sagemaker"}) {
    for (const auto* path : {"/", "/b/a%20b", "/b/%E2%82%AC", "/b/a+b", "/b//x/../y", "/b/a%2Fb"}) {
      SCOPED_TRACE(std::string(service) + " " + path);
      const auto message = signed_put(path, "b=2&a=%20x&a", service);
      const auto checked = check(message);
      ASSERT_TRUE(checked) << checked.error().message;
      auto changed = message;
      changed.path += "x";
      EXPECT_FALSE(check(changed));
      changed = message;
      changed.method = "POST";
      EXPECT_FALSE(check(changed));
      changed = message;
      changed.query += "&c";
      EXPECT_FALSE(check(changed));
      changed = message;
      changed.headers[1].second = "text/html";
      EXPECT_FALSE(check(changed));
      changed = message;
      changed.headers[2].second = "another agent";
      EXPECT_TRUE(check(changed)) << "proxies may change it: not signed";
    }
  }
}

TEST(Sign, DistinctS3KeysHaveDistinctPaths) {
  for (const auto& [a, b] : {std::pair{"/b/a+b", "/b/a%20b"}, std::pair{"/b/a%2Fb", "/b/a%252Fb"},
                             std::pair{"/b//x", "/b/x"}, std::pair{"/b/./x", "/b/x"}}) {
    auto message = signed_put(a, "", "s3");
    message.path = b;
    EXPECT_FALSE(check(message)) << a << " " << b;
  }
}

// As botocore signs them: the path is not encoded anew.
TEST(Sign, S3PathsMayBeSignedAsTheyAreSent) {
  for (const auto& [sent, encoded] : {std::pair{"/b/a%2Fb", "/b/a/b"}, std::pair{"/b/a+b", "/b/a%2Bb"}}) {
    auto message = signed_put(sent, "", "s3");
    auto claim = parse(message.view()).value().value();
    const auto hash = hash_for(claim, message);
    auto canonical =
        canonical_request(message.view(), claim.scope, claim.signed_headers, Scheme::header, hash);
    ASSERT_EQ(canonical.find(encoded), 4U) << canonical;
    canonical.replace(4, std::string_view(encoded).size(), sent);
    const auto raw = crypto::hmac_sha256(signing_key(kSuiteSecret, claim.scope),
                                         string_to_sign(claim.time, claim.scope, canonical));
    claim.signature = crypto::hex(raw);
    EXPECT_TRUE(verify(claim, kSuiteSecret, message.view(), hash)) << sent;
    message.path = encoded;
    EXPECT_FALSE(verify(claim, kSuiteSecret, message.view(), hash)) << encoded;
  }
}

// '+' is a space to those who read the query.
TEST(Sign, APlusInTheQueryIsSignedAsASpace) {
  auto message = signed_put("/b", "prefix=a%20b", "s3");
  message.query = "prefix=a+b";
  EXPECT_TRUE(check(message));
  message = signed_put("/b", "prefix=a%2Bb", "s3");
  message.query = "prefix=a+b";
  EXPECT_FALSE(check(message));
}

TEST(Presign, V4RoundTrip) {
  Message message{"GET", "/bucket/a%20b.txt", "versionId=3", "", {{"Host", "127.0.0.1:9"}}};
  message.query = presign(message.view(), kCredentials, "us-east-1", "s3", kNow, std::chrono::hours(1));
  const auto claim = parse(message.view());
  ASSERT_TRUE(claim && *claim) << claim.error().message;
  EXPECT_EQ((*claim)->session_token, kCredentials.session_token);
  EXPECT_EQ((*claim)->expires_at, kNow + std::chrono::hours(1));
  EXPECT_TRUE(check(message));
  message.headers.emplace_back("X-Amz-Acl", "public-read");
  EXPECT_EQ(check(message).error().code, ErrorCode::permission_denied);
}

TEST(Presign, V2RoundTrip) {
  Message message{"GET", "/bucket/a%20b.txt", "response-content-type=text%2Fplain", "", {{"Host", "h"}}};
  message.query = presign_v2(message.view(), kCredentials, kNow + std::chrono::hours(1));
  EXPECT_TRUE(check(message));
  EXPECT_FALSE(check(message, "another"));
  auto changed = message;
  changed.path = "/bucket/other";
  EXPECT_EQ(check(changed).error().code, ErrorCode::unauthenticated);
  changed = message;
  changed.method = "DELETE";
  EXPECT_EQ(check(changed).error().code, ErrorCode::unsupported);
}

// Made with botocore 1.44 (HmacV1QueryAuth, HmacV1 with a token) at a fixed time.
TEST(Presign, V2OfBotocore) {
  const auto vectors = load("botocore_v2.txt");
  ASSERT_GE(vectors.size(), 3U);
  for (const auto& vector : vectors) {
    const auto& message = vector.messages.at("presigned");
    const auto checked = check(message, kSuiteSecret);
    EXPECT_TRUE(checked) << vector.name << ": " << checked.error().message;
  }
}

TEST(CheckTime, Bounds) {
  Claim claim;
  claim.time = kNow;
  const Millis minutes15 = std::chrono::minutes(15);
  EXPECT_EQ(check_time(claim, kNow + minutes15), TimeCheck::ok);
  EXPECT_EQ(check_time(claim, kNow - minutes15), TimeCheck::ok);
  EXPECT_EQ(check_time(claim, kNow + minutes15 + Millis(1)), TimeCheck::skewed);
  EXPECT_EQ(check_time(claim, kNow - minutes15 - Millis(1)), TimeCheck::skewed);
  claim.scheme = Scheme::query;
  claim.expires_at = kNow + Millis(1000);
  EXPECT_EQ(check_time(claim, kNow + Millis(1000)), TimeCheck::ok);
  EXPECT_EQ(check_time(claim, kNow + Millis(1001)), TimeCheck::expired);
  EXPECT_EQ(check_time(claim, kNow - minutes15 - Millis(1)), TimeCheck::early);
}

TEST(Parse, UnsignedIsNotAnError) {
  const Message message{"GET", "/healthz", "x=1", "", {{"Host", "h"}}};
  const auto claim = parse(message.view());
  ASSERT_TRUE(claim);
  EXPECT_FALSE(*claim);
}

struct Bad {
  const char* name;
  const char* authorization;
  const char* date;
  const char* query;
  ErrorCode code;
  const char* says;
};

#define GOOD_CREDENTIAL "Credential=AK/20261129/us-east-1/s3/aws4_request"
#define GOOD_SIGNATURE "Signature=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

TEST(Parse, MalformedSignaturesAreNamed) {
  constexpr auto kBad = ErrorCode::invalid_argument;
  const char* const now = "20261129T164158Z";
  const Bad table[] = {
      {"v2 header", "AWS AK:sig", now, "", ErrorCode::unsupported, "AWS4-HMAC-SHA256"},
      {"basic", "Basic Zm9v", now, "", ErrorCode::unsupported, "Basic"},
      {"empty", "AWS4-HMAC-SHA256", now, "", kBad, "without '='"},
      {"no credential", "AWS4-HMAC-SHA256 SignedHeaders=host, " GOOD_SIGNATURE, now, "", kBad,
       "lacks Credential"},
      {"no headers", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", " GOOD_SIGNATURE, now, "", kBad,
       "lacks SignedHeaders"},
      {"no signature", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", SignedHeaders=host", now, "", kBad,
       "lacks Signature"},
      {"short scope", "AWS4-HMAC-SHA256 Credential=AK/s3, SignedHeaders=host, " GOOD_SIGNATURE, now, "", kBad,
       "ACCESS_KEY/DATE"},
      {"bad day",
       "AWS4-HMAC-SHA256 Credential=AK/2026/us-east-1/s3/aws4_request, SignedHeaders=host, " GOOD_SIGNATURE,
       now, "", kBad, "YYYYMMDD"},
      {"other day",
       "AWS4-HMAC-SHA256 Credential=AK/20261128/us-east-1/s3/aws4_request, "
       "SignedHeaders=host, " GOOD_SIGNATURE,
       now, "", kBad, "is not the day"},
      {"host unsigned", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", SignedHeaders=x-amz-date, " GOOD_SIGNATURE,
       now, "", kBad, "Host"},
      {"upper case", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", SignedHeaders=Host, " GOOD_SIGNATURE, now, "",
       kBad, "lower-case"},
      {"signature of 3", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", SignedHeaders=host, Signature=abc", now, "",
       kBad, "64 lower-case hex"},
      {"no date", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", SignedHeaders=host, " GOOD_SIGNATURE, nullptr, "",
       kBad, "X-Amz-Date"},
      {"garbage date", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", SignedHeaders=host, " GOOD_SIGNATURE,
       "yesterday", "", kBad, "yesterday"},
      {"query lacks", nullptr, nullptr, "X-Amz-Algorithm=AWS4-HMAC-SHA256", kBad, "lacks X-Amz-Credential"},
      {"query algorithm", nullptr, nullptr, "X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256", ErrorCode::unsupported,
       "ECDSA"},
      {"query expires", nullptr, nullptr,
       "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK/20261129/r/s3/"
       "aws4_request&X-Amz-Date=20261129T164158Z"
       "&X-Amz-SignedHeaders=host&X-Amz-Expires=604801&X-Amz-" GOOD_SIGNATURE,
       kBad, "604800"},
      {"broken escape", nullptr, nullptr, "a=%zz", kBad, "percent"},
      {"v2 lacks", nullptr, nullptr, "AWSAccessKeyId=AK&Signature=x", kBad, "lacks Expires"},
      {"v2 expires", nullptr, nullptr, "AWSAccessKeyId=AK&Signature=x&Expires=soon", kBad, "soon"},
      {"both", "AWS4-HMAC-SHA256 " GOOD_CREDENTIAL ", SignedHeaders=host, " GOOD_SIGNATURE, now,
       "X-Amz-Signature=1", kBad, "signed twice"},
  };
  for (const auto& bad : table) {
    SCOPED_TRACE(bad.name);
    Message message{"GET", "/", bad.query, "", {{"Host", "h"}}};
    if (bad.authorization != nullptr) message.headers.emplace_back("authorization", bad.authorization);
    if (bad.date != nullptr) message.headers.emplace_back("x-amz-date", bad.date);
    const auto claim = parse(message.view());
    ASSERT_FALSE(claim);
    EXPECT_EQ(claim.error().code, bad.code);
    EXPECT_THAT(claim.error().message, HasSubstr(bad.says));
  }
}

TEST(Parse, AccessKeyMayHoldSlashes) {
  Message message{"GET", "/", "", "", {{"Host", "h"}, {"X-Amz-Date", "20261129T164158Z"}}};
  message.headers.emplace_back("Authorization",
                               "AWS4-HMAC-SHA256 Credential=A/B/20261129/us-east-1/s3/aws4_request, "
                               "SignedHeaders=host, " GOOD_SIGNATURE);
  const auto claim = parse(message.view());
  ASSERT_TRUE(claim && *claim);
  EXPECT_EQ((*claim)->access_key, "A/B");
}

}  // namespace
}  // namespace muster::wire::sigv4
