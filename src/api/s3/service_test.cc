// Requests against answers: requests.txt is played line by line on a fresh store; then what a text cannot
// say.
#include "api/s3/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"
#include "data/objectstore/object_store.h"
#include "wire/sigv4/aws_chunked.h"

namespace muster::api::s3 {
namespace {

using ::testing::HasSubstr;

class TextBody final : public net::BodyReader {
 public:
  explicit TextBody(std::string text) : text_(std::move(text)) {}
  Result<std::size_t> read(std::span<char> buffer) override {
    if (given_ == text_.size() && failure) return tl::unexpected(*failure);
    const auto count = std::min({buffer.size(), text_.size() - given_, std::size_t{1000}});
    std::memcpy(buffer.data(), text_.data() + given_, count);
    given_ += count;
    return count;
  }
  std::size_t given() const { return given_; }
  std::optional<Error> failure;  // instead of the end

 private:
  std::string text_;
  std::size_t given_ = 0;
};

std::string read_range(const net::FileRange& range) {
  std::string out(range.length, '\0');
  EXPECT_EQ(::pread(range.file->get(), out.data(), out.size(), static_cast<off_t>(range.offset)),
            static_cast<ssize_t>(out.size()));
  return out;
}

std::string body_text(const net::Response& response) {
  if (const auto* text = std::get_if<std::string>(&response.body)) return *text;
  if (const auto* range = std::get_if<net::FileRange>(&response.body)) return read_range(*range);
  const auto& sequence = std::get<net::FileSequence>(response.body);
  std::string out;
  while (out.size() < sequence.length) {
    const auto range = sequence.next();
    if (!range) return "<" + range.error().message + ">";
    out += read_range(*range);
  }
  EXPECT_EQ(out.size(), sequence.length);
  return out;
}

class Service {
 public:
  Service() {
    auto opened = objectstore::open(
        {.directory = folder_ / "objects", .sync = false, .readers = 2, .part_bytes_min = 5});
    EXPECT_TRUE(opened);
    store_ = *std::move(opened);
    service_ = std::make_unique<S3Service>(*store_, Options{.endpoint_url = "http://here"});
    caller.account = "123456789012";
    caller.request_id = "REQUEST";
    caller.now = Time{1'796'000'000'000};
  }

  net::Response send(net::RequestHead head, const std::string& body,
                     Payload payload = {"UNSIGNED-PAYLOAD", {}}) {
    TextBody reader(body);
    return send(std::move(head), reader, body, std::move(payload));
  }

  net::Response send(net::RequestHead head, TextBody& reader, const std::string& body, Payload payload) {
    const auto route = service_->route(head, caller, std::move(payload));
    net::Request request{.head = std::move(head)};
    if (route.streaming) {
      request.reader = &reader;
    } else {
      request.body = body;
    }
    return route.handle(request);
  }

  // Of the first object that was written.
  void overwrite_content(const std::string& text) {
    EXPECT_TRUE(write_file_atomic(folder_ / "objects/01/0000000000000001", text));
  }

  Caller caller;

 private:
  TempDir folder_;
  std::unique_ptr<ports::ObjectStore> store_;
  std::unique_ptr<S3Service> service_;
};

net::RequestHead head_of(std::string_view method, std::string_view target, std::uint64_t length) {
  net::RequestHead head;
  head.method = method;
  const auto question = target.find('?');
  head.path = target.substr(0, question);
  if (question != std::string_view::npos) head.query = target.substr(question + 1);
  head.content_length = length;
  return head;
}

// ---- requests.txt ----

struct Exchange {
  int line = 0;
  std::string method;
  std::string target;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::string payload_hash = "UNSIGNED-PAYLOAD";
  std::vector<std::string> expected;
};

std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == 'n') {
      out += '\n';
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<Exchange> read_exchanges(const std::string& path) {
  std::vector<Exchange> out;
  const auto text = read_file(path).value();
  int number = 0;
  bool in_request = false;
  for (const auto raw : split(text, '\n')) {
    ++number;
    const auto line = trim(raw);
    if (line.empty() || line.front() == '#') continue;
    const auto rest = trim(line.substr(1));
    if (line.front() == '<') {
      in_request = false;
      out.back().expected.emplace_back(rest);
      continue;
    }
    if (!in_request) {
      in_request = true;
      const auto space = rest.find(' ');
      out.push_back({.line = number,
                     .method = std::string(rest.substr(0, space)),
                     .target = std::string(trim(rest.substr(space)))});
      continue;
    }
    const auto colon = rest.find(':');
    const auto name = rest.substr(0, colon);
    const auto value = trim(rest.substr(colon + 1));
    if (name == "body") {
      out.back().body = unescape(value);
    } else if (name == "payload") {
      out.back().payload_hash = value;
    } else {
      out.back().headers.emplace_back(name, value);
    }
  }
  return out;
}

// Words like $id stand for what `set id Element` took out of an earlier answer.
std::string fill_in(std::string text, const std::map<std::string, std::string>& words) {
  for (const auto& [name, value] : words) {
    for (auto at = text.find("$" + name); at != std::string::npos; at = text.find("$" + name)) {
      text.replace(at, name.size() + 1, value);
    }
  }
  return text;
}

std::string element(const std::string& xml, const std::string& name) {
  const auto begin = xml.find("<" + name + ">");
  const auto end = xml.find("</" + name + ">");
  if (begin == std::string::npos || end == std::string::npos) return "";
  return xml.substr(begin + name.size() + 2, end - begin - name.size() - 2);
}

void check(const Exchange& exchange, const net::Response& response,
           std::map<std::string, std::string>& words) {
  const auto body = body_text(response);
  for (const auto& raw : exchange.expected) {
    const auto line = fill_in(raw, words);
    if (const auto status = parse_int(line)) {
      EXPECT_EQ(response.status, *status) << body;
    } else if (line.front() == '~') {
      EXPECT_THAT(body, HasSubstr(unescape(trim(std::string_view(line).substr(1)))));
    } else if (line.front() == '!') {
      EXPECT_THAT(body, ::testing::Not(HasSubstr(unescape(trim(std::string_view(line).substr(1))))));
    } else if (line.front() == '=') {
      EXPECT_EQ(body, unescape(trim(std::string_view(line).substr(1))));
    } else if (line.rfind("set ", 0) == 0) {
      const auto parts = split(line, ' ');
      words[std::string(parts[1])] = element(body, std::string(parts[2]));
    } else if (line.rfind("no ", 0) == 0) {
      EXPECT_FALSE(response.headers.has(line.substr(3))) << line.substr(3);
    } else {
      const auto colon = line.find(':');
      EXPECT_EQ(response.headers.get(line.substr(0, colon)), trim(std::string_view(line).substr(colon + 1)))
          << line;
    }
  }
}

TEST(S3Service, AnswersAsTheTextSays) {
  Service service;
  std::map<std::string, std::string> words;
  const auto exchanges = read_exchanges(std::string(MUSTER_SOURCE_DIR) + "/src/api/s3/requests.txt");
  ASSERT_GT(exchanges.size(), 100U);
  for (const auto& exchange : exchanges) {
    SCOPED_TRACE("requests.txt:" + std::to_string(exchange.line) + ": " + exchange.method + " " +
                 exchange.target);
    ASSERT_FALSE(exchange.expected.empty());
    const auto body = fill_in(exchange.body, words);
    auto head = head_of(exchange.method, fill_in(exchange.target, words), body.size());
    for (const auto& [name, value] : exchange.headers) head.headers.add(name, fill_in(value, words));
    check(exchange, service.send(std::move(head), body, {exchange.payload_hash, {}}), words);
  }
}

// ---- the rest ----

TEST(S3Service, HeadAnswersHaveNoBodyButTheLength) {
  Service service;
  service.send(head_of("PUT", "/bucket", 0), "");
  service.send(head_of("PUT", "/bucket/k", 5), "hello");
  const auto found = service.send(head_of("HEAD", "/bucket/k", 0), "");
  EXPECT_EQ(found.status, 200);
  EXPECT_EQ(found.content_length_of_head, 5U);
  EXPECT_EQ(body_text(found), "");
  const auto missing = service.send(head_of("HEAD", "/bucket/none", 0), "");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(body_text(missing), "");
}

TEST(S3Service, KeysOfEveryCharacterAreListedAndFound) {
  Service service;
  service.send(head_of("PUT", "/bucket", 0), "");
  for (int c = 1; c < 128; ++c) {
    const std::string key = std::string("k") + static_cast<char>(c);
    EXPECT_EQ(service.send(head_of("PUT", "/bucket/" + percent_encode(key), 1), "x").status, 200);
    const auto list = service.send(
        head_of("GET", "/bucket?list-type=2&encoding-type=url&prefix=" + percent_encode(key), 0), "");
    EXPECT_THAT(body_text(list), HasSubstr("<Key>" + percent_encode(key, "/") + "</Key>"));
  }
}

TEST(S3Service, BodyIsNotReadForAMissingBucket) {
  Service service;
  TextBody reader("hello");
  const auto answer = service.send(head_of("PUT", "/nowhere/k", 5), reader, "", {"UNSIGNED-PAYLOAD", {}});
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(reader.given(), 0U);
}

TEST(S3Service, BodiesThatFailLeaveTheOldObject) {
  Service service;
  service.send(head_of("PUT", "/bucket", 0), "");
  service.send(head_of("PUT", "/bucket/k", 3), "old");
  const struct {
    ErrorCode error;
    std::string code;
  } cases[] = {{ErrorCode::timeout, "RequestTimeout"},
               {ErrorCode::unavailable, "IncompleteBody"},
               {ErrorCode::resource_exhausted, "EntityTooLarge"}};
  for (const auto& one : cases) {
    TextBody reader("half");
    reader.failure = Error{one.error, "the body stopped"};
    const auto answer = service.send(head_of("PUT", "/bucket/k", 8), reader, "", {"UNSIGNED-PAYLOAD", {}});
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(element(body_text(answer), "Code"), one.code);
  }
  EXPECT_EQ(body_text(service.send(head_of("GET", "/bucket/k", 0), "")), "old");
}

TEST(S3Service, ObjectsOfManyPartsGiveAnyRange) {
  Service service;
  service.send(head_of("PUT", "/bucket", 0), "");
  const auto id = element(body_text(service.send(head_of("POST", "/bucket/k?uploads", 0), "")), "UploadId");
  std::string whole;
  std::string list = "<CompleteMultipartUpload>";
  for (int i = 1; i <= 9; ++i) {
    const std::string part(static_cast<std::size_t>(5 + i), static_cast<char>('a' + i));
    whole += part;
    const auto answer = service.send(
        head_of("PUT", "/bucket/k?partNumber=" + std::to_string(i) + "&uploadId=" + id, part.size()), part);
    list += "<Part><PartNumber>" + std::to_string(i) + "</PartNumber><ETag>" +
            std::string(answer.headers.get("ETag")) + "</ETag></Part>";
  }
  list += "</CompleteMultipartUpload>";
  EXPECT_EQ(service.send(head_of("POST", "/bucket/k?uploadId=" + id, list.size()), list).status, 200);
  for (std::size_t first = 0; first < whole.size(); ++first) {
    for (std::size_t last = first; last < whole.size(); ++last) {
      auto head = head_of("GET", "/bucket/k", 0);
      head.headers.set("Range", "bytes=" + std::to_string(first) + "-" + std::to_string(last));
      const auto answer = service.send(std::move(head), "");
      ASSERT_EQ(answer.status, 206);
      ASSERT_EQ(body_text(answer), whole.substr(first, last - first + 1)) << first << "-" << last;
    }
  }
}

TEST(S3Service, ARequestWithoutAPayloadHashHasSignedAnEmptyBody) {
  Service service;
  service.send(head_of("PUT", "/bucket", 0), "");
  const auto put = [&](const std::string& body) {
    return service.send(head_of("PUT", "/bucket/k", body.size()), body, payload_of({}, "secret"));
  };
  EXPECT_EQ(put("").status, 200);
  EXPECT_EQ(element(body_text(put("x")), "Code"), "XAmzContentSHA256Mismatch");
}

// What is damaged on disk is not given new digests that fit the damage.
TEST(S3Service, APartIsNotCopiedFromADamagedObject) {
  Service service;
  service.send(head_of("PUT", "/bucket", 0), "");
  service.send(head_of("PUT", "/bucket/source", 5), "hello");
  const auto id = element(body_text(service.send(head_of("POST", "/bucket/k?uploads", 0), "")), "UploadId");
  const auto copy = [&](const std::string& range) {
    auto head = head_of("PUT", "/bucket/k?partNumber=1&uploadId=" + id, 0);
    head.headers.set("x-amz-copy-source", "bucket/source");
    if (!range.empty()) head.headers.set("x-amz-copy-source-range", range);
    return service.send(std::move(head), "");
  };
  EXPECT_EQ(copy("").status, 200);
  EXPECT_EQ(copy("bytes=0-4").status, 200);
  service.overwrite_content("jello");
  for (const auto* range : {"", "bytes=0-4"}) {
    const auto answer = copy(range);
    EXPECT_EQ(answer.status, 500);
    EXPECT_EQ(element(body_text(answer), "Code"), "InternalError");
    EXPECT_THAT(body_text(answer), HasSubstr("s3://bucket/source is damaged"));
  }
  service.overwrite_content("jel");
  EXPECT_EQ(copy("").status, 500);
  const auto got = service.send(head_of("GET", "/bucket/source", 0), "");
  EXPECT_EQ(got.status, 500) << "at once, and not in the middle of the body";
  EXPECT_THAT(body_text(got), HasSubstr("s3://bucket/source is damaged"));
}

class Chunked : public ::testing::Test {
 protected:
  Chunked() {
    service.send(head_of("PUT", "/bucket", 0), "");
    claim.access_key = "key";
    claim.scope = {"20261129", "us-east-1", "s3"};
    claim.time = *parse_compact("20261129T120000Z");
    claim.signature = std::string(64, 'a');
  }

  net::Response put(std::string_view word, const std::string& framed, std::size_t length,
                    std::string_view trailer = "") {
    claim.payload_hash = word;
    auto head = head_of("PUT", "/bucket/k", framed.size());
    head.headers.set("x-amz-decoded-content-length", std::to_string(length));
    head.headers.set("Content-Encoding", "aws-chunked");
    if (!trailer.empty()) head.headers.set("x-amz-trailer", trailer);
    return service.send(std::move(head), framed, payload_of(claim, "secret"));
  }

  Service service;
  wire::sigv4::Claim claim;
};

TEST_F(Chunked, SignedChunks) {
  const auto framed =
      wire::sigv4::encode_signed_chunks("hello world", 4, claim.scope, claim.time, "secret", claim.signature);
  EXPECT_EQ(put("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", framed, 11).status, 200);
  const auto got = service.send(head_of("GET", "/bucket/k", 0), "");
  EXPECT_EQ(body_text(got), "hello world");
  EXPECT_FALSE(got.headers.has("Content-Encoding")) << "the framing is not the object's encoding";

  auto forged = framed;
  forged[forged.find("hell")] = 'y';
  const auto refused = put("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", forged, 11);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(element(body_text(refused), "Code"), "SignatureDoesNotMatch");
  const auto cut = put("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", framed.substr(0, framed.size() - 40), 11);
  EXPECT_EQ(element(body_text(cut), "Code"), "IncompleteBody");
  EXPECT_EQ(element(body_text(put("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", framed, 12)), "Code"),
            "IncompleteBody");
  EXPECT_EQ(body_text(service.send(head_of("GET", "/bucket/k", 0), "")), "hello world");
}

TEST_F(Chunked, TrailingChecksum) {
  const auto framed = [](const std::string& checksum) {
    return "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" + checksum + "\r\n\r\n";
  };
  const auto crc = crypto::base64(crypto::digest(crypto::Digest::crc32, "hello"));
  const auto answer = put("STREAMING-UNSIGNED-PAYLOAD-TRAILER", framed(crc), 5, "x-amz-checksum-crc32");
  EXPECT_EQ(answer.status, 200) << body_text(answer);
  EXPECT_EQ(answer.headers.get("x-amz-checksum-crc32"), crc);
  EXPECT_EQ(body_text(service.send(head_of("GET", "/bucket/k", 0), "")), "hello");
  const auto wrong = put("STREAMING-UNSIGNED-PAYLOAD-TRAILER", framed("AAAAAA=="), 5, "x-amz-checksum-crc32");
  EXPECT_EQ(element(body_text(wrong), "Code"), "BadDigest");
  const auto broken = put("STREAMING-UNSIGNED-PAYLOAD-TRAILER", framed("zz"), 5, "x-amz-checksum-crc32");
  EXPECT_EQ(element(body_text(broken), "Code"), "InvalidRequest");
  const auto missing =
      put("STREAMING-UNSIGNED-PAYLOAD-TRAILER", "5\r\nhello\r\n0\r\n\r\n", 5, "x-amz-checksum-crc32");
  EXPECT_EQ(element(body_text(missing), "Code"), "MalformedTrailerError");
}

TEST_F(Chunked, TrailingChecksumOfAPart) {
  const auto id = element(body_text(service.send(head_of("POST", "/bucket/k?uploads", 0), "")), "UploadId");
  claim.payload_hash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
  const auto crc = crypto::base64(crypto::digest(crypto::Digest::crc64nvme, "hello"));
  const auto framed = "5\r\nhello\r\n0\r\nx-amz-checksum-crc64nvme:" + crc + "\r\n\r\n";
  auto head = head_of("PUT", "/bucket/k?partNumber=1&uploadId=" + id, framed.size());
  head.headers.set("x-amz-decoded-content-length", "5");
  head.headers.set("x-amz-trailer", "x-amz-checksum-crc64nvme");
  const auto answer = service.send(std::move(head), framed, payload_of(claim, "secret"));
  EXPECT_EQ(answer.status, 200) << body_text(answer);
  EXPECT_EQ(answer.headers.get("x-amz-checksum-crc64nvme"), crc);
}

}  // namespace
}  // namespace muster::api::s3
