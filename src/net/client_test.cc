#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "net/testing.h"

namespace muster::net {
namespace {

using testing::FunctionHandler;
using ::testing::HasSubstr;
using testing::start;
using testing::text_response;

FunctionHandler echo(std::set<std::string>* peers = nullptr, std::mutex* mutex = nullptr) {
  auto kept = std::make_shared<std::vector<Responder>>();
  return FunctionHandler([=](const RequestHead& head) -> std::variant<Route, Response> {
    if (head.path == "/refuse") return text_response(403, "refused");
    Route route;
    if (head.path == "/never") {
      route.handle_later = [kept](Request, Responder answer) { kept->push_back(std::move(answer)); };
      return route;
    }
    route.body_max = head.path == "/small" ? 10 : 64 << 20;
    route.handle = [=](Request& request) {
      if (peers != nullptr) {
        const std::lock_guard lock(*mutex);
        peers->insert(request.head.peer);
      }
      if (request.head.path == "/push") {
        Response response;
        response.body = PushBody([](BodyWriter& writer) -> Result<void> {
          for (int i = 0; i < 100; ++i) MUSTER_CHECK(writer.write(std::string(1000, 'p')));
          return {};
        });
        return response;
      }
      return text_response(200, request.head.method + " " + request.body);
    };
    return route;
  });
}

ClientRequest request(std::string method, std::string target, std::string body = "") {
  ClientRequest out;
  out.method = std::move(method);
  out.target = std::move(target);
  out.body = std::move(body);
  out.timeout = Millis(60'000);
  return out;
}

TEST(Client, ReusesOneConnection) {
  std::set<std::string> peers;
  std::mutex mutex;
  auto handler = echo(&peers, &mutex);
  auto server = start(handler);
  auto client = Client::create("127.0.0.1", server->port());
  for (int i = 0; i < 5; ++i) {
    const auto answer = client->send(request("POST", "/", "x" + std::to_string(i)));
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->body, "POST x" + std::to_string(i));
  }
  EXPECT_EQ(client->send(request("HEAD", "/"))->status, 200);
  EXPECT_EQ(client->send(request("GET", "/push"))->body, std::string(100'000, 'p'));
  EXPECT_EQ(peers.size(), 1U);
}

TEST(Client, ManyThreadsShareTheBoundedPool) {
  std::set<std::string> peers;
  std::mutex mutex;
  auto handler = echo(&peers, &mutex);
  auto server = start(handler);
  auto client = Client::create("127.0.0.1", server->port(), 3);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto text = std::to_string(t * 1000 + i);
        const auto answer = client->send(request("PUT", "/", text));
        if (answer && answer->body == "PUT " + text) ++good;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 400);
  EXPECT_LE(peers.size(), 3U);
}

TEST(Client, SinkTakesOnlyGoodAnswers) {
  auto handler = echo();
  auto server = start(handler);
  auto client = Client::create("localhost", server->port());
  std::string taken;
  const auto sink = [&](std::string_view piece) -> Result<void> {
    taken += piece;
    return {};
  };
  const auto big = std::string(5 << 20, 'z');
  ASSERT_TRUE(client->send(request("PUT", "/", big), sink));
  EXPECT_EQ(taken, "PUT " + big);
  taken.clear();
  const auto refused = client->send(request("GET", "/refuse"), sink);
  EXPECT_EQ(refused->status, 403);
  EXPECT_EQ(refused->body, "refused");
  EXPECT_EQ(taken, "");
  const auto stop = [](std::string_view) -> Result<void> { return fail(ErrorCode::io, "disk full"); };
  EXPECT_EQ(client->send(request("PUT", "/", big), stop).error().message, "disk full");
  EXPECT_TRUE(client->send(request("PUT", "/", "after")));
}

TEST(Client, UploadsAFileAndExpects) {
  TempDir dir;
  ASSERT_TRUE(write_file_atomic(dir / "f", "0123456789"));
  auto file = std::make_shared<const UniqueFd>(*open_file(dir / "f", O_RDONLY));
  auto handler = echo();
  auto server = start(handler);
  auto client = Client::create("127.0.0.1", server->port());
  for (const bool expect : {false, true}) {
    auto upload = request("PUT", "/");
    upload.body = FileRange{file, 2, 5};
    upload.expect_continue = expect;
    EXPECT_EQ(client->send(upload)->body, "PUT 23456");
    upload.target = "/refuse";
    EXPECT_EQ(client->send(upload)->status, 403);
    upload.body = FileRange{file, 2, 50};
    upload.target = "/";
    EXPECT_EQ(client->send(upload).error().code, ErrorCode::io);
  }
}

TEST(Client, ReadsARefusalInTheMiddleOfItsBody) {
  auto handler = echo();
  auto server = start(handler);
  auto client = Client::create("127.0.0.1", server->port());
  const auto answer = client->send(request("PUT", "/small", std::string(32 << 20, 'x')));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 413);
  EXPECT_TRUE(client->send(request("PUT", "/", "after")));
}

TEST(Client, FailuresHaveTheirCodes) {
  auto handler = echo();
  auto server = start(handler);
  const auto port = server->port();
  auto client = Client::create("127.0.0.1", port);
  auto slow = request("GET", "/never");
  slow.timeout = Millis(100);
  EXPECT_EQ(client->send(slow).error().code, ErrorCode::timeout);
  ASSERT_TRUE(client->send(request("GET", "/")));
  server.reset();
  const auto refused = client->send(request("GET", "/"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("refused"));
  EXPECT_EQ(Client::create("no-such-host.invalid", 80)->send(request("GET", "/")).error().code,
            ErrorCode::unavailable);
}

TEST(Client, SurvivesARestartOfTheServer) {
  auto handler = echo();
  auto server = start(handler);
  const auto port = server->port();
  auto client = Client::create("127.0.0.1", port);
  ASSERT_TRUE(client->send(request("GET", "/")));
  server.reset();
  server = start(handler, {.port = port});
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(client->send(request("GET", "/")));
}

TEST(Client, CancelEndsRequestsInFlight) {
  std::promise<Responder> arrived;
  FunctionHandler handler([&](const RequestHead&) -> std::variant<Route, Response> {
    Route route;
    route.handle_later = [&](Request, Responder answer) { arrived.set_value(std::move(answer)); };
    return route;
  });
  auto server = start(handler);
  auto client = Client::create("127.0.0.1", server->port());
  std::jthread later([&] {
    const auto unanswered = arrived.get_future().get();
    client->cancel();
  });
  const auto answer = client->send(request("GET", "/never"));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::cancelled);
  EXPECT_EQ(client->send(request("GET", "/")).error().code, ErrorCode::cancelled);
}

// A server that speaks what it is told to, byte for byte.
std::uint16_t raw_server(std::string answer, std::thread& thread) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(fd, 4), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  thread = std::thread([fd, answer = std::move(answer)] {
    const UniqueFd listener(fd);
    const UniqueFd peer(::accept(fd, nullptr, nullptr));
    char buffer[4096];
    if (::recv(peer.get(), buffer, sizeof buffer, 0) > 0)
      ::send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  });
  return ntohs(address.sin_port);
}

TEST(Client, OddAnswers) {
  struct Case {
    const char* answer;
    const char* body;  // nullptr: an error
  };
  const Case table[] = {
      {"HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end"},
      {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", "ab"},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
       "1\r\n\r\nx",
       "x"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", nullptr},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", nullptr},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nq\r\n", nullptr},
      {"nonsense\r\n\r\n", nullptr},
      {"HTTP/1.1 200", nullptr},
      {"", nullptr},
  };
  for (const auto& entry : table) {
    std::thread thread;
    const auto port = raw_server(entry.answer, thread);
    const auto answer = Client::create("127.0.0.1", port)->send(request("POST", "/"));
    thread.join();
    if (entry.body == nullptr) {
      ASSERT_FALSE(answer) << entry.answer;
      EXPECT_EQ(answer.error().code, ErrorCode::unavailable) << entry.answer;
    } else {
      ASSERT_TRUE(answer) << entry.answer << answer.error().message;
      EXPECT_EQ(answer->body, entry.body);
    }
  }
}

}  // namespace
}  // namespace muster::net
