#include "data/s3/client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/file.h"
#include "data/s3/testing.h"

namespace muster::data::s3 {
namespace {

using testing::answer;
using ::testing::ElementsAre;
using testing::error_answer;
using testing::FakeS3;
using ::testing::HasSubstr;

Result<std::string> read(Client& client, const std::string& key, GetOptions options = {}) {
  std::string out;
  MUSTER_CHECK(client.get_object({"b", key}, options, [&](std::string_view piece) -> Result<void> {
    out += piece;
    return {};
  }));
  return out;
}

TEST(S3Client, PutGetHeadDelete) {
  FakeS3 s3;
  auto client = s3.client();
  const auto etag = client->put_object({"b", "a/b c+d%2B é"}, std::string("content"));
  ASSERT_TRUE(etag) << etag.error().message;
  EXPECT_EQ(s3.objects().count("a/b c+d%2B é"), 1U);
  EXPECT_EQ(client->get_text({"b", "a/b c+d%2B é"}), "content");
  EXPECT_EQ(read(*client, "a/b c+d%2B é", {ByteRange{2, 3}, *etag}), "nte");
  const auto head = client->head_object({"b", "a/b c+d%2B é"});
  ASSERT_TRUE(head);
  EXPECT_EQ(head->size, 7U);
  EXPECT_EQ(head->etag, *etag);
  EXPECT_EQ(head->modified.unix_ms, 784111777000);
  EXPECT_TRUE(client->delete_object({"b", "a/b c+d%2B é"}));
  const auto gone = client->get_text({"b", "a/b c+d%2B é"});
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::not_found);
  EXPECT_THAT(gone.error().message, HasSubstr("GetObject s3://b/a/b c+d%2B é: NoSuchKey: because (404)"));
  for (const auto& [bucket, said] : {std::pair{"b", "s3://b/none: there is no such object"},
                                     std::pair{"nowhere", "s3://nowhere/none: there is no bucket nowhere"}}) {
    const auto missing = client->head_object({bucket, "none"});
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, ErrorCode::not_found);
    EXPECT_THAT(missing.error().message, HasSubstr(said));
  }
}

TEST(S3Client, FileBody) {
  TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "f", std::string(3 << 20, 'x') + "end"));
  FakeS3 s3;
  auto client = s3.client();
  const auto fd = std::make_shared<const UniqueFd>(*open_file(dir / "f", O_RDONLY));
  ASSERT_TRUE(client->put_object({"b", "f"}, net::FileRange{fd, 1, (3 << 20) + 2}));
  EXPECT_EQ(s3.objects()["f"].data, std::string((3 << 20) - 1, 'x') + "end");
  EXPECT_EQ(client->put_object({"b", "f"}, net::FileRange{fd, 0, 4 << 20}).error().code, ErrorCode::io);
}

TEST(S3Client, ListsPagesAndDecodesNames) {
  FakeS3 s3;
  s3.page_size = 2;
  for (const auto* key : {"p/a b", "p/a+b", "p/c/1", "p/c/2", "p/\xE2\x82\xAC", "q"}) s3.put(key, "x");
  auto client = s3.client();
  std::vector<std::string> keys;
  int pages = 0;
  const auto collect = [&](ListPage page) -> Result<void> {
    ++pages;
    for (const auto& object : page.objects) keys.push_back(object.key);
    for (const auto& prefix : page.common_prefixes) keys.push_back("[" + prefix + "]");
    return {};
  };
  ASSERT_TRUE(client->list_objects({.bucket = "b", .prefix = "p/"}, collect));
  EXPECT_THAT(keys, ElementsAre("p/a b", "p/a+b", "p/c/1", "p/c/2", "p/\xE2\x82\xAC"));
  EXPECT_EQ(pages, 3);
  keys.clear();
  ASSERT_TRUE(client->list_objects({.bucket = "b", .prefix = "p/", .delimiter = "/", .start_after = "p/a b"},
                                   collect));
  EXPECT_THAT(keys, ElementsAre("p/a+b", "[p/c/]", "p/\xE2\x82\xAC"));
  const auto stop = [](ListPage) -> Result<void> { return fail(ErrorCode::cancelled, "enough"); };
  EXPECT_EQ(client->list_objects({.bucket = "b"}, stop).error().message, "enough");
}

TEST(S3Client, CopyDeleteManyAndBuckets) {
  FakeS3 s3;
  auto client = s3.client();
  s3.put("a&b", "1");
  s3.put("locked", "2");
  ASSERT_TRUE(client->copy_object({"b", "a&b"}, {"b", "copy of a"}));
  EXPECT_EQ(s3.objects()["copy of a"].data, "1");
  EXPECT_EQ(client->copy_object({"b", "none"}, {"b", "x"}).error().code, ErrorCode::not_found);
  const auto failed = client->delete_objects("b", {"copy of a", "locked"});
  ASSERT_TRUE(failed) << failed.error().message;
  ASSERT_EQ(failed->size(), 1U);
  EXPECT_EQ(failed->front().first, "locked");
  EXPECT_EQ(failed->front().second.code, ErrorCode::permission_denied);
  EXPECT_EQ(s3.objects().count("copy of a"), 0U);
  // XML cannot name these.
  const std::string odd[] = {std::string("nul\0", 4), "\x01", "\xEF\xBF\xBE"};
  for (const auto& key : odd) s3.put(key, "odd");
  ASSERT_EQ(client->delete_objects("b", {odd[0], "locked", odd[1], odd[2]})->size(), 1U);
  for (const auto& key : odd) EXPECT_EQ(s3.objects().count(key), 0U);
  EXPECT_TRUE(client->create_bucket("b")) << "ours already";
  EXPECT_TRUE(client->create_bucket("new"));
  EXPECT_EQ(client->create_bucket("taken").error().code, ErrorCode::already_exists);
  EXPECT_EQ(client->delete_bucket("b").error().code, ErrorCode::failed_precondition);
  EXPECT_EQ(client->bucket_exists("b"), true);
  EXPECT_EQ(client->bucket_exists("none"), false);
  EXPECT_EQ(client->list_buckets()->front().name, "b");
}

TEST(S3Client, ConditionalPut) {
  FakeS3 s3;
  auto client = s3.client();
  ASSERT_TRUE(client->put_object({"b", "k"}, std::string("1"), {.if_none_match = true}));
  EXPECT_EQ(client->put_object({"b", "k"}, std::string("2"), {.if_none_match = true}).error().code,
            ErrorCode::failed_precondition);
}

TEST(S3Client, WrongSecretIsNotRetried) {
  FakeS3 s3;
  auto options = s3.options();
  options.credentials = static_credentials({testing::kAccessKey, "wrong", ""});
  const auto denied = s3.client(options)->get_text({"b", "k"});
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, ErrorCode::unauthenticated);
  EXPECT_THAT(denied.error().message, HasSubstr("SignatureDoesNotMatch"));
  EXPECT_EQ(s3.requests, 1);
}

TEST(S3Client, TransientAnswersAreRetried) {
  FakeS3 s3;
  s3.put("k", "content");
  auto client = s3.client();
  const std::pair<int, const char*> table[] = {{503, "SlowDown"},
                                               {500, "InternalError"},
                                               {429, "TooManyRequests"},
                                               {502, ""},
                                               {400, "RequestTimeout"}};
  for (const auto& [status, code] : table) {
    std::atomic<int> left{3};
    s3.fault = [&, status = status, code = code](const net::Request&) -> std::optional<net::Response> {
      if (left-- > 0) return error_answer(status, code);
      return std::nullopt;
    };
    EXPECT_EQ(client->get_text({"b", "k"}), "content") << status;
    left = 3;
    EXPECT_TRUE(client->put_object({"b", "p"}, std::string("again"))) << status;
  }
}

TEST(S3Client, RetriesAreBounded) {
  FakeS3 s3;
  s3.fault = [](const net::Request&) { return std::optional(error_answer(503, "SlowDown")); };
  auto options = s3.options();
  options.retry.attempts_max = 4;
  options.retry.budget = 6;
  auto client = s3.client(options);
  const auto first = client->get_text({"b", "k"});
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code, ErrorCode::unavailable);
  EXPECT_THAT(first.error().message, HasSubstr("SlowDown"));
  EXPECT_EQ(s3.requests, 4);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(client->get_text({"b", "k"}));
  EXPECT_EQ(s3.requests, 1 + 10 + 6) << "3 + 3 retries, then the budget is used up";
}

TEST(S3Client, A200WithAnErrorBodyIsAnError) {
  FakeS3 s3;
  s3.put("a", "1");
  auto client = s3.client();
  std::atomic<int> left{1};
  s3.fault = [&](const net::Request& request) -> std::optional<net::Response> {
    if (request.head.headers.has("x-amz-copy-source") && left-- > 0)
      return error_answer(200, "InternalError");
    return std::nullopt;
  };
  EXPECT_TRUE(client->copy_object({"b", "a"}, {"b", "c"})) << "retried";
  left = 1000;
  EXPECT_EQ(client->copy_object({"b", "a"}, {"b", "c"}).error().code, ErrorCode::unavailable);
}

TEST(S3Client, ABrokenBodyGoesOnWhereItBroke) {
  FakeS3 s3;
  const std::string data = [] {
    std::string out;
    for (int i = 0; i < 200'000; ++i) out += std::to_string(i);
    return out;
  }();
  s3.put("k", data);
  std::atomic<int> breaks{3};
  std::vector<std::string> ranges;
  s3.fault = [&](const net::Request& request) -> std::optional<net::Response> {
    ranges.emplace_back(request.head.headers.get("Range"));
    if (breaks-- <= 0) return std::nullopt;
    auto object = s3.objects()["k"];
    const auto range = request.head.headers.get("Range");
    const std::size_t first =
        range.empty() ? 0 : static_cast<std::size_t>(*parse_int(range.substr(6, range.size() - 7)));
    net::Response response = answer(range.empty() ? 200 : 206);
    response.headers.set("ETag", '"' + object.etag + '"');
    response.headers.set("Content-Range", "bytes " + std::to_string(first) + "-9/9");
    response.body = net::PushBody([&data, first](net::BodyWriter& writer) -> Result<void> {
      MUSTER_CHECK(writer.write(std::string_view(data).substr(first, 100'000)));
      return fail(ErrorCode::io, "break");
    });
    return response;
  };
  EXPECT_EQ(read(*s3.client(), "k"), data);
  EXPECT_THAT(ranges, ElementsAre("", "bytes=100000-", "bytes=200000-", "bytes=300000-"));
}

TEST(S3Client, AnObjectReplacedInTheMiddleIsNeverMixed) {
  FakeS3 s3;
  s3.put("k", std::string(300'000, 'a'));
  std::atomic<bool> broken{false};
  s3.fault = [&](const net::Request&) -> std::optional<net::Response> {
    if (broken.exchange(true)) return std::nullopt;
    auto response = answer(200);
    response.headers.set("ETag", '"' + s3.objects()["k"].etag + '"');
    response.body = net::PushBody([&](net::BodyWriter& writer) -> Result<void> {
      MUSTER_CHECK(writer.write(std::string(1000, 'a')));
      s3.put("k", std::string(300'000, 'b'));
      return fail(ErrorCode::io, "break");
    });
    return response;
  };
  const auto got = read(*s3.client(), "k");
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, ErrorCode::failed_precondition);
}

TEST(S3Client, WrongBytesAreSeen) {
  FakeS3 s3;
  s3.put("k", "content");
  const auto headers = [&](net::Response response) {
    response.headers.set("ETag", '"' + s3.objects()["k"].etag + '"');
    response.headers.set("x-amz-checksum-crc32c", s3.objects()["k"].crc32c);
    return std::optional(response);
  };
  s3.fault = [&](const net::Request&) { return headers(answer(200, "Content")); };
  EXPECT_EQ(read(*s3.client(), "k").error().code, ErrorCode::corrupt);
  s3.fault = [&](const net::Request&) { return headers(answer(200, "content")); };
  EXPECT_EQ(read(*s3.client(), "k"), "content");
  EXPECT_EQ(read(*s3.client(), "k", {ByteRange{1, 2}, ""}).error().code, ErrorCode::corrupt)
      << "200 to a range";
  s3.fault = [&](const net::Request&) {
    auto response = answer(206, "ontent");
    response.headers.set("Content-Range", "bytes 1-6/7");
    return headers(response);
  };
  EXPECT_EQ(read(*s3.client(), "k", {ByteRange{1, 2}, ""}).error().code, ErrorCode::corrupt) << "too much";
}

TEST(S3Client, AnErrorOfTheSinkIsFinal) {
  FakeS3 s3;
  s3.put("k", "content");
  const auto got = s3.client()->get_object({"b", "k"}, {}, [](std::string_view) -> Result<void> {
    return fail(ErrorCode::unavailable, "downstream is away");
  });
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().message, "downstream is away");
  EXPECT_EQ(s3.requests, 1);
}

TEST(S3Client, WaitsWhileTheEndpointIsAway) {
  FakeS3 s3;
  s3.put("k", "content");
  auto options = s3.options();
  s3.stop();
  options.retry.attempts_max = 1;
  EXPECT_EQ(s3.client(options)->get_text({"b", "k"}).error().code, ErrorCode::unavailable);
  options.retry.away_max = Millis(10'000);
  options.retry.away_delay_max = Millis(20);
  auto client = s3.client(options);
  std::thread later([&] {
    std::this_thread::sleep_for(Millis(150));
    s3.start(s3.port());
  });
  EXPECT_EQ(client->get_text({"b", "k"}), "content");
  later.join();
  s3.stop();
  options.retry.away_max = Millis(60);
  const auto before = boot_time();
  EXPECT_EQ(s3.client(options)->get_text({"b", "k"}).error().code, ErrorCode::unavailable);
  EXPECT_GE((boot_time() - before).count(), 60);
}

// Attempts that end in a time-out each are bounded by the time, not by their number.
TEST(S3Client, AnEndpointThatNeverAnswersIsAway) {
  FakeS3 s3;
  std::promise<void> end;
  s3.fault = [ended = end.get_future().share()](const net::Request&) -> std::optional<net::Response> {
    ended.wait();
    return answer(503);
  };
  auto options = s3.options();
  options.timeout = Millis(20);
  options.retry.attempts_max = 1'000'000;
  options.retry.budget = 1'000'000;
  options.retry.away_max = Millis(60);
  EXPECT_EQ(s3.client(options)->get_text({"b", "k"}).error().code, ErrorCode::timeout);
  end.set_value();
}

TEST(S3Client, CancelEndsWaiting) {
  FakeS3 s3;
  auto options = s3.options();
  s3.stop();
  options.retry.away_max = std::chrono::minutes(10);
  options.retry.away_delay_max = std::chrono::minutes(1);
  options.retry.delay_base = std::chrono::minutes(1);
  auto client = s3.client(options);
  std::thread later([&] {
    std::this_thread::sleep_for(Millis(50));
    client->cancel();
  });
  EXPECT_EQ(client->get_text({"b", "k"}).error().code, ErrorCode::cancelled);
  later.join();
}

class FixedClock final : public Clock {
 public:
  Time now() const override { return Time{ms}; }
  std::atomic<std::int64_t> ms{SystemClock().now().unix_ms};
};

TEST(S3Client, LearnsTheServersClock) {
  FakeS3 s3;
  s3.put("k", "content");
  FixedClock clock;
  clock.ms -= 3'600'000;
  std::atomic<int> skewed{0};
  s3.fault = [&](const net::Request& request) -> std::optional<net::Response> {
    const auto date = parse_compact(request.head.headers.get("x-amz-date"));
    if (std::abs((SystemClock().now() - *date).count()) < 60'000) return std::nullopt;
    ++skewed;
    return error_answer(403, "RequestTimeTooSkewed");
  };
  auto options = s3.options();
  options.clock = &clock;
  auto client = s3.client(options);
  EXPECT_EQ(client->get_text({"b", "k"}), "content");
  EXPECT_EQ(client->get_text({"b", "k"}), "content");
  EXPECT_EQ(skewed, 1);
}

// ---- credentials ----

class CredentialsEndpoint final : public net::Handler {
 public:
  std::variant<net::Route, net::Response> route(const net::RequestHead& head) override {
    ++asked;
    if (head.headers.get("Authorization") != "Bearer t" || head.path != "/creds" || head.query != "id=1") {
      return answer(403);
    }
    if (away) return answer(503);
    return answer(200, "{\"AccessKeyId\":\"AKIDTEST\",\"SecretAccessKey\":\"secret/key\",\"Token\":\"tok" +
                           std::to_string(asked) + "\",\"Expiration\":\"" + format_iso8601(expires) + "\"}");
  }
  std::atomic<int> asked{0};
  std::atomic<bool> away{false};
  Time expires;
};

TEST(Credentials, ContainerEndpointIsAskedBeforeTheyExpire) {
  CredentialsEndpoint endpoint;
  auto server = net::Server::start({}, endpoint);
  ASSERT_TRUE(server);
  FixedClock clock;
  endpoint.expires = clock.now() + std::chrono::hours(1);
  const auto uri = "http://127.0.0.1:" + std::to_string((*server)->port()) + "/creds?id=1";
  const std::map<std::string, std::string, std::less<>> variables = {
      {"AWS_CONTAINER_CREDENTIALS_FULL_URI", uri}, {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer t"}};
  const Environment environment = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  auto provider = credentials_from(environment, clock);
  ASSERT_TRUE(provider) << provider.error().message;
  EXPECT_EQ((*provider)->get()->session_token, "tok1");
  EXPECT_EQ((*provider)->get()->session_token, "tok1");
  clock.ms += 56 * 60'000;  // 4 minutes left
  endpoint.away = true;
  EXPECT_EQ((*provider)->get()->session_token, "tok1") << "still good";
  endpoint.away = false;
  endpoint.expires = clock.now() + std::chrono::hours(1);
  EXPECT_EQ((*provider)->get()->session_token, "tok3");
  clock.ms += 61 * 60'000;
  endpoint.away = true;
  EXPECT_EQ((*provider)->get().error().code, ErrorCode::unavailable);
}

TEST(Credentials, Environment) {
  const SystemClock clock;
  std::map<std::string, std::string, std::less<>> variables;
  const Environment environment = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  EXPECT_THAT(credentials_from(environment, clock).error().message, HasSubstr("AWS_ACCESS_KEY_ID"));
  variables["AWS_ACCESS_KEY_ID"] = "A";
  EXPECT_THAT(credentials_from(environment, clock).error().message,
              HasSubstr("AWS_SECRET_ACCESS_KEY is not"));
  variables["AWS_SECRET_ACCESS_KEY"] = "S";
  EXPECT_EQ((*credentials_from(environment, clock))->get()->secret_key, "S");
  EXPECT_THAT(options_from(environment).error().message, HasSubstr("AWS_ENDPOINT_URL"));
  variables["AWS_ENDPOINT_URL"] = "http://h:1";
  variables["AWS_DEFAULT_REGION"] = "eu-1";
  EXPECT_EQ(options_from(environment)->region, "eu-1");
  EXPECT_FALSE(Client::create({.endpoint = "nonsense", .credentials = static_credentials({})}));
}

TEST(S3Client, ExpiredCredentialsAreFetchedAgain) {
  FakeS3 s3;
  s3.put("k", "content");
  CredentialsEndpoint endpoint;
  endpoint.expires = SystemClock().now() + std::chrono::hours(1);
  auto server = net::Server::start({}, endpoint);
  const SystemClock clock;
  auto options = s3.options();
  options.credentials = *container_credentials(
      {"http://127.0.0.1:" + std::to_string((*server)->port()) + "/creds?id=1", "Bearer t", ""}, clock);
  s3.fault = [](const net::Request& request) -> std::optional<net::Response> {
    if (request.head.headers.get("x-amz-security-token") == "tok1") return error_answer(400, "ExpiredToken");
    return std::nullopt;
  };
  EXPECT_EQ(s3.client(options)->get_text({"b", "k"}), "content");
  EXPECT_EQ(endpoint.asked, 2);
}

}  // namespace
}  // namespace muster::data::s3
