#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/detail/message_parser.h"
#include "net/detail/response_head.h"

namespace muster::net::detail {
namespace {

using ::testing::HasSubstr;

TEST(RequestHead, KeepsThePathRaw) {
  const auto parsed =
      parse_request_head("GET /b/a%20b//../%2F?x=%41&y HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a:  2 \r\n\r\n");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->head.path, "/b/a%20b//../%2F");
  EXPECT_EQ(parsed->head.query, "x=%41&y");
  EXPECT_EQ(parsed->head.headers.get("X-a"), "1");
  ASSERT_EQ(parsed->head.headers.all().size(), 3U);
  EXPECT_EQ(parsed->head.headers.all()[2].second, "2");
  EXPECT_EQ(parsed->head.content_length, 0U);
  EXPECT_TRUE(parsed->keep_alive);
}

struct Case {
  const char* text;
  const char* says;  // nullptr: accepted
};

TEST(RequestHead, Table) {
  const Case table[] = {
      {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", nullptr},
      {"GET http://h:80/x?y HTTP/1.1\r\nHost: h\r\n\r\n", nullptr},
      {"GET / HTTP/1.0\r\n\r\n", nullptr},
      {"PROPFIND / HTTP/1.1\r\nHost: h\r\n\r\n", nullptr},
      {"GET / HTTP/1.1\r\n\r\n", "exactly one Host"},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "exactly one Host"},
      {"GET / HTTP/2.0\r\nHost: h\r\n\r\n", "bad version"},
      {"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "bad target"},
      {"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "begin with '/'"},
      {"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", "begin with '/'"},
      {"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", "bad field"},
      {"GET / HTTP/1.1\r\nHost : h\r\n\r\n", "bad field"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", "bad Content-Length"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", "bad Content-Length"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n", "bad Content-Length"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "ontent-Length"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "bad"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer coding"},
      {"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"},
      {"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\n\r\n", "expectation"},
  };
  for (const auto& entry : table) {
    const auto parsed = parse_request_head(entry.text);
    if (entry.says == nullptr) {
      EXPECT_TRUE(parsed) << entry.text << parsed.error().message;
    } else {
      ASSERT_FALSE(parsed) << entry.text;
      EXPECT_THAT(parsed.error().message, HasSubstr(entry.says)) << entry.text;
    }
  }
}

TEST(RequestHead, EndIsFoundAcrossPieces) {
  const std::string text = "GET / HTTP/1.1\r\nHost: h\r\n\r\nrest";
  std::size_t scanned = 0;
  for (std::size_t n = 0; n < text.size(); ++n) {
    const auto length = find_head_end(std::string_view(text).substr(0, n), scanned);
    EXPECT_EQ(length, n >= text.size() - 4 ? text.size() - 4 : 0) << n;
    if (length > 0) break;
  }
}

std::string decode_all(std::string_view wire, std::size_t in_step, std::size_t out_step, bool& done) {
  ChunkedDecoder decoder;
  std::string pending;
  std::string out;
  std::string room(out_step, '\0');
  for (std::size_t at = 0; at < wire.size() && !decoder.done(); at += in_step) {
    pending += wire.substr(at, in_step);
    for (;;) {
      const auto step = decoder.decode(pending, room);
      EXPECT_TRUE(step) << step.error().message;
      if (!step) return out;
      pending.erase(0, step->consumed);
      out += room.substr(0, step->produced);
      if (decoder.done() || pending.empty() || (step->consumed == 0 && step->produced == 0)) break;
    }
  }
  done = decoder.done();
  return out;
}

TEST(Chunked, AnySplitGivesTheSameBody) {
  const std::string wire = "5\r\nhello\r\n1;ext=\"x\"\r\n \r\n5\r\nworld\r\n0\r\nTrailer: x\r\n\r\n";
  for (std::size_t in = 1; in <= wire.size(); ++in) {
    for (const std::size_t out : {1U, 3U, 100U}) {
      bool done = false;
      EXPECT_EQ(decode_all(wire, in, out, done), "hello world") << in << " " << out;
      EXPECT_TRUE(done);
    }
  }
}

TEST(Chunked, BrokenOnesAreErrors) {
  for (const auto* wire : {"x\r\n", "5\r\nhelloXX\r\n", "ffffffffffffffffff\r\n", "-1\r\n", "5 \r\nhello"}) {
    ChunkedDecoder decoder;
    std::string room(100, '\0');
    EXPECT_FALSE(decoder.decode(wire, room)) << wire;
  }
}

TEST(ResponseHead, AValueCannotEndTheHead) {
  Headers headers;
  headers.set("X-A", "a\r\nX-Evil: 1");
  headers.set("Content-Length", "999");
  headers.set("Date", "now");
  EXPECT_EQ(response_head(200, headers,
                          {.content_length = 3, .chunked = false, .keep_alive = true, .http10 = false}),
            "HTTP/1.1 200 OK\r\nX-A: a  X-Evil: 1\r\nDate: now\r\nContent-Length: 3\r\n\r\n");
}

TEST(Url, Table) {
  const auto good = parse_url("http://10.0.0.1:8080/base");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->host, "10.0.0.1");
  EXPECT_EQ(good->port, 8080);
  EXPECT_EQ(good->path, "/base");
  EXPECT_EQ(parse_url("http://[::1]:81")->host, "::1");
  EXPECT_EQ(parse_url("HTTP://h")->port, 80);
  for (const auto* bad : {"h:80", "ftp://h", "http://", "http://h:", "http://h:0", "http://h:65536",
                          "http://h:x", "http://u@h", "http://[::1", "http://h/a?b", "https://h"}) {
    EXPECT_FALSE(parse_url(bad)) << bad;
  }
}

TEST(HeadersTest, SetReplacesEveryOne) {
  Headers headers;
  headers.add("A", "1");
  headers.add("b", "x");
  headers.add("a", "2");
  headers.set("a", "3");
  EXPECT_EQ(headers.get("A"), "3");
  EXPECT_EQ(headers.all().size(), 2U);
  EXPECT_TRUE(headers.has("B"));
  EXPECT_EQ(headers.get("c"), "");
}

}  // namespace
}  // namespace muster::net::detail
