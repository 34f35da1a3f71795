#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/text.h"
#include "net/testing.h"

namespace muster::net {
namespace {

using testing::answering;
using testing::eventually;
using testing::FunctionHandler;
using testing::get;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawSocket;
using testing::start;
using ::testing::StartsWith;
using testing::text_response;

// /echo: the body. /stream: the length of a streamed body. /refuse: 403 before the body. /push: three pieces.
// /file: a file range. /throw. /big: 8 MiB.
class Site {
 public:
  Site() : handler_([this](const RequestHead& head) { return route(head); }) {
    EXPECT_TRUE(write_file_atomic(dir_ / "file", std::string(3 << 20, 'f')));
  }
  Handler& handler() { return handler_; }
  std::atomic<int> handled{0};
  std::atomic<int> bytes_streamed{0};

 private:
  std::variant<Route, Response> route(const RequestHead& head) {
    if (head.path == "/refuse") return text_response(403, "refused");
    if (head.path == "/stream") return stream();
    auto route = answering([this, path = head.path](Request& request) { return answer(path, request); });
    route.body_max = 1 << 20;
    return route;
  }
  Route stream() {
    auto route = answering([this](Request& request) {
      char buffer[10'000];
      std::size_t total = 0;
      for (;;) {
        const auto got = request.reader->read(buffer);
        if (!got) return text_response(400, std::string(to_string(got.error().code)));
        if (*got == 0) return text_response(200, std::to_string(total));
        total += *got;
        bytes_streamed += static_cast<int>(*got);
      }
    });
    route.streaming = true;
    route.body_max = 64 << 20;
    return route;
  }
  Response answer(const std::string& path, Request& request) {
    ++handled;
    if (path == "/echo") return text_response(200, request.body);
    if (path == "/throw") throw std::runtime_error("boom");
    if (path == "/big") return text_response(200, std::string(8 << 20, 'b'));
    if (path == "/none") return text_response(204, "");
    if (path == "/file") {
      Response response;
      auto file = std::make_shared<const UniqueFd>(*open_file(dir_ / "file", O_RDONLY));
      response.status = 206;
      response.body = FileRange{file, 10, (2 << 20) + 5};
      return response;
    }
    if (path == "/files" || path == "/files-short") {
      Response response;
      const int last = path == "/files" ? 4 : 2;
      response.body = FileSequence{4 * 100'000, [this, last, n = 0]() mutable -> Result<FileRange> {
                                     if (n == last) return fail(ErrorCode::io, "gone");
                                     MUSTER_TRY(auto fd, open_file(dir_ / "file", O_RDONLY));
                                     return FileRange{std::make_shared<const UniqueFd>(std::move(fd)),
                                                      static_cast<std::uint64_t>(n++), 100'000};
                                   }};
      return response;
    }
    if (path == "/short") {
      Response response;
      auto file = std::make_shared<const UniqueFd>(*open_file(dir_ / "file", O_RDONLY));
      response.body = FileRange{file, 0, 4 << 20};
      return response;
    }
    if (path == "/push" || path == "/broken-push") {
      Response response;
      const bool broken = path == "/broken-push";
      response.body = PushBody([broken](BodyWriter& writer) -> Result<void> {
        for (const auto* piece : {"one ", "two ", "three"}) MUSTER_CHECK(writer.write(piece));
        if (broken) return fail(ErrorCode::io, "broke");
        return {};
      });
      return response;
    }
    return text_response(404, "no such path\n");
  }

  TempDir dir_;
  FunctionHandler handler_;
};

std::string body_of(const std::string& answer) {
  const auto at = answer.find("\r\n\r\n");
  return at == std::string::npos ? "" : answer.substr(at + 4);
}

std::string post(std::string_view path, std::string_view body, std::string_view more = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more) + "\r\n" + std::string(body);
}

class ServerTest : public ::testing::Test {
 protected:
  void run(ServerOptions options = {}) { server_ = start(site_.handler(), options); }
  std::string ask(std::string_view text) {
    RawSocket socket(server_->port());
    EXPECT_TRUE(socket.send(text));
    socket.half_close();
    return socket.read_to_end();
  }
  Site site_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AnswersAndKeepsTheConnection) {
  run();
  RawSocket socket(server_->port());
  for (int i = 0; i < 3; ++i) {
    socket.send(post("/echo", "hello"));
    const auto answer = socket.read_until("hello");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Length: 5\r\n"));
    EXPECT_THAT(answer, HasSubstr("Date: "));
  }
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  run();
  std::string all;
  for (int i = 0; i < 50; ++i) all += post("/echo", "<" + std::to_string(i) + ">");
  all += get("/none", "Connection: close\r\n");
  const auto answer = ask(all);
  std::size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = answer.find("<" + std::to_string(i) + ">", at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_THAT(answer.substr(at), HasSubstr("204 No Content"));
}

TEST_F(ServerTest, ByteByByte) {
  run();
  RawSocket socket(server_->port());
  for (const char c : post("/echo", "slow body")) {
    ASSERT_TRUE(socket.send(std::string_view(&c, 1)));
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  EXPECT_THAT(socket.read_until("slow body"), HasSubstr("200 OK"));
}

TEST_F(ServerTest, HalfClosedClientGetsItsAnswer) {
  run();
  EXPECT_THAT(ask(post("/echo", "half")), HasSubstr("half"));
}

TEST_F(ServerTest, ChunkedBody) {
  run();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(ask(head + "5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n" + get("/none")), HasSubstr("hello there"));
  EXPECT_THAT(ask(head + "zz\r\n"), StartsWith("HTTP/1.1 400"));
  std::string huge = head;
  for (int i = 0; i < 17; ++i) huge += "10000\r\n" + std::string(65536, 'x') + "\r\n";
  EXPECT_THAT(ask(huge), StartsWith("HTTP/1.1 413"));
  const std::string stream = "PUT /stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(body_of(ask(stream + "5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n")), "11");
  EXPECT_EQ(body_of(ask(stream + "5\r\nhello\r\nqq\r\n")), "invalid argument");
}

TEST_F(ServerTest, BadHeadsAreRefusedAtOnce) {
  run();
  const std::pair<std::string, const char*> table[] = {
      {"\x16\x03\x01\x02garbage", "400"},
      {"GET / HTTP/1.1\r\n\r\n", "400"},
      {"BREW / HTCPCP/1.0\r\nHost: h\r\n\r\n", "400"},
      {get("/", "X: " + std::string(70'000, 'x') + "\r\n"), "431"},
      {"GET /" + std::string(70'000, 'x'), "431"},
      {get("/", "Transfer-Encoding: gzip\r\n"), "501"},
      {get("/", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), "400"},
  };
  for (const auto& [text, status] : table) {
    RawSocket socket(server_->port());
    socket.send(text);
    const auto answer = socket.read_to_end();
    EXPECT_THAT(answer, StartsWith(std::string("HTTP/1.1 ") + status)) << text.substr(0, 60);
    EXPECT_THAT(answer, HasSubstr("Connection: close"));
    EXPECT_TRUE(socket.ended()) << text.substr(0, 60);
  }
  EXPECT_EQ(site_.handled, 0);
}

TEST_F(ServerTest, SlowHeadAndSlowBodyTimeOut) {
  run({.head_timeout = Millis(700), .body_idle_timeout = Millis(700), .keep_alive_timeout = Millis(700)});
  const std::pair<std::string, const char*> table[] = {
      {"GET / HT", "HTTP/1.1 408"},
      {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc", "HTTP/1.1 408"},
      {"PUT /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc", "HTTP/1.1 400"},
      {"", ""},
  };
  for (const auto& [text, begins] : table) {
    const auto before = std::chrono::steady_clock::now();
    RawSocket socket(server_->port());
    socket.send(text);
    EXPECT_THAT(socket.read_to_end(), StartsWith(begins)) << text;
    EXPECT_TRUE(socket.ended()) << text;
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
  }
  RawSocket idle(server_->port());  // after an exchange: closed without a word
  idle.send(get("/none"));
  const auto answer = idle.read_to_end();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 204"));
  EXPECT_THAT(answer, Not(HasSubstr("408")));
}

TEST_F(ServerTest, AHeadThatDripsIsCutAtTheTotal) {
  run({.head_timeout = Millis(300)});
  RawSocket socket(server_->port());
  const auto before = std::chrono::steady_clock::now();
  std::string answer;
  socket.send("GET / HTTP/1.1\r\n");
  while (answer.empty() && std::chrono::steady_clock::now() - before < std::chrono::seconds(5)) {
    socket.send("X: y\r\n");
    answer = socket.read_for(Millis(50));
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 408"));
}

TEST_F(ServerTest, TooLargeBodyIsAnsweredBeforeItIsRead) {
  run();
  RawSocket socket(server_->port());
  socket.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2147483648\r\n\r\n");
  const auto answer = socket.read_until("taken here\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413"));
  EXPECT_EQ(site_.handled, 0);
}

// The client that reads only after it has sent everything: it must not be reset before.
TEST_F(ServerTest, A2GBBodyCanBeSentAndTheAnswerRead) {
  run();
  RawSocket socket(server_->port());
  ASSERT_TRUE(socket.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2147483648\r\n\r\n"));
  const std::string piece(4 << 20, 'x');
  for (int i = 0; i < 512; ++i) ASSERT_TRUE(socket.send(piece)) << i;
  const auto answer = socket.read_to_end();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413"));
  EXPECT_TRUE(socket.ended());
  EXPECT_FALSE(socket.reset_by_peer());
}

TEST_F(ServerTest, RefusedRequestWithASmallBodyKeepsTheConnection) {
  run();
  const auto answer = ask(post("/refuse", "small") + post("/echo", "after"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(answer, HasSubstr("after"));
  EXPECT_THAT(ask(post("/refuse", std::string(1 << 20, 'x')) + post("/echo", "after")),
              Not(HasSubstr("after")));
}

TEST_F(ServerTest, ContinueIsSentOnlyWhenTheBodyIsWanted) {
  run();
  for (const auto* path : {"/echo", "/stream"}) {
    RawSocket socket(server_->port());
    socket.send("POST " + std::string(path) +
                " HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_EQ(socket.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    socket.send("body");
    EXPECT_THAT(socket.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  }
  for (const auto* head :
       {"POST /refuse HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000000\r\nExpect: 100-continue\r\n\r\n"}) {
    RawSocket socket(server_->port());
    socket.send(head);
    const auto answer = socket.read_to_end();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 4"));
    EXPECT_THAT(answer, HasSubstr("Connection: close"));
  }
}

TEST_F(ServerTest, HeadHasLengthAndNoBody) {
  run();
  const auto answer = ask("HEAD /file HTTP/1.1\r\nHost: h\r\n\r\n" + get("/none"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 2097157\r\n"));
  EXPECT_THAT(body_of(answer), StartsWith("HTTP/1.1 204"));
}

TEST_F(ServerTest, FileRange) {
  run();
  const auto answer = ask(get("/file"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 206"));
  EXPECT_EQ(body_of(answer), std::string((2 << 20) + 5, 'f'));
}

TEST_F(ServerTest, FileSequence) {
  run();
  const auto answer = ask(get("/files") + get("/none"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 400000\r\n"));
  EXPECT_THAT(body_of(answer), StartsWith(std::string(400'000, 'f') + "HTTP/1.1 204"));
  EXPECT_EQ(body_of(ask(get("/files-short") + get("/none"))).size(), 200'000U);
}

TEST_F(ServerTest, AFileThatGotShorterEndsTheConnection) {
  run();
  EXPECT_EQ(body_of(ask(get("/short") + get("/none"))).size(), 3U << 20);
}

TEST_F(ServerTest, PushedBodyIsChunked) {
  run();
  const auto answer = ask(get("/push") + get("/none"));
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(answer, HasSubstr("4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\nHTTP/1.1 204"));
  EXPECT_THAT(ask(get("/broken-push") + get("/none")), Not(HasSubstr("0\r\n\r\n")));
  EXPECT_EQ(body_of(ask("GET /push HTTP/1.0\r\n\r\n")), "one two three");
}

TEST_F(ServerTest, ThrowingHandlerIs500AndSaid) {
  std::vector<std::string> said;
  run({.handler_threads = 1, .note = [&](std::string_view line) { said.emplace_back(line); }});
  EXPECT_THAT(ask(get("/throw?key=secret") + get("/none")),
              ::testing::AllOf(HasSubstr("500"), HasSubstr("204")));
  server_.reset();
  EXPECT_THAT(said, ::testing::ElementsAre("GET /throw has failed: boom"));
}

TEST_F(ServerTest, SlowReaderHoldsNoThread) {
  run({.handler_threads = 1});
  std::vector<std::unique_ptr<RawSocket>> slow;
  for (int i = 0; i < 8; ++i) {
    slow.push_back(std::make_unique<RawSocket>(server_->port(), 4096));
    slow.back()->send(get("/big"));
  }
  ASSERT_TRUE(eventually([&] { return site_.handled == 8; }));
  EXPECT_THAT(ask(post("/echo", "quick")), HasSubstr("quick"));
  for (auto& socket : slow)
    EXPECT_EQ(body_of(socket->read_until(std::string(8 << 20, 'b'))).size(), 8U << 20);
}

TEST_F(ServerTest, SlowUploadsHoldNoRequestThread) {
  run({.handler_threads = 1});
  RawSocket upload(server_->port());
  upload.send("PUT /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
  RawSocket json(server_->port());
  json.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
  ASSERT_TRUE(eventually([&] { return site_.bytes_streamed == 3; }));
  EXPECT_THAT(ask(post("/echo", "quick")), HasSubstr("quick"));
  upload.send("defghij");
  EXPECT_THAT(upload.read_until("10"), HasSubstr("200"));
  json.send("defghij");
  EXPECT_THAT(json.read_until("abcdefghij"), HasSubstr("200"));
}

TEST_F(ServerTest, ClientGoneInTheMiddleOfABody) {
  run();
  RawSocket socket(server_->port());
  socket.send("PUT /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
  socket.half_close();
  EXPECT_EQ(body_of(socket.read_to_end()), "unavailable");
}

TEST_F(ServerTest, StreamedLengthAboveTheRouteIsRefused) {
  run();
  EXPECT_THAT(ask("PUT /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
}

TEST_F(ServerTest, PortTakenNamesTheHolder) {
  run();
  auto second = Server::start({.port = server_->port()}, site_.handler());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::already_exists);
  EXPECT_THAT(second.error().message, HasSubstr("(pid " + std::to_string(::getpid()) + ")"));
  EXPECT_EQ(Server::start({.address = "nonsense"}, site_.handler()).error().code,
            ErrorCode::invalid_argument);
}

TEST_F(ServerTest, ServesIPv6Loopback) {
  ServerOptions options;
  options.address = "::1";
  const auto server = Server::start(options, site_.handler());
  if (!server && server.error().code == ErrorCode::io) GTEST_SKIP() << server.error().message;
  ASSERT_TRUE(server) << server.error().message;
  const auto client = Client::create("::1", (*server)->port());
  ClientRequest request;
  request.method = "POST";
  request.target = "/echo";
  request.body = "over IPv6";
  const auto answer = client->send(request);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->body, "over IPv6");
  options.port = (*server)->port();
  const auto taken = Server::start(options, site_.handler());
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message, HasSubstr("cannot listen on [::1]:" + std::to_string(options.port)));
}

TEST_F(ServerTest, AboveTheLimitClientsAreAnswered503) {
  run({.connections_max = 3});
  std::vector<std::unique_ptr<RawSocket>> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(std::make_unique<RawSocket>(server_->port()));
    held.back()->send(get("/none"));
    EXPECT_THAT(held.back()->read_until("\r\n\r\n"), HasSubstr("204"));
  }
  RawSocket extra(server_->port());
  extra.send(get("/none"));
  EXPECT_THAT(extra.read_to_end(), StartsWith("HTTP/1.1 503"));
  held.clear();
  EXPECT_TRUE(eventually([&] { return ask(get("/none")).find("204") != std::string::npos; }));
}

}  // namespace
}  // namespace muster::net
