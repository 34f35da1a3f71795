// Answers that take their time: long polls, pushed bodies, and a server that stops meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "net/testing.h"

namespace muster::net {
namespace {

using testing::answering;
using testing::eventually;
using testing::FunctionHandler;
using testing::get;
using ::testing::HasSubstr;
using testing::RawSocket;
using testing::start;
using ::testing::StartsWith;
using testing::text_response;

struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Responder> waiting;
  std::size_t wait_for(std::size_t count) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(60), [&] { return waiting.size() >= count; });
    return waiting.size();
  }
  std::vector<Responder> take() {
    const std::lock_guard lock(mutex);
    return std::exchange(waiting, {});
  }
};

FunctionHandler polling(Board& board) {
  return FunctionHandler([&board](const RequestHead& head) -> std::variant<Route, Response> {
    Route route;
    if (head.path == "/now") {
      route.handle_later = [](Request, Responder answer) { answer(text_response(200, "now")); };
    } else if (head.path == "/throw") {
      route.handle_later = [](Request, Responder) { throw std::runtime_error("boom"); };
    } else {
      route.handle_later = [&board](Request, Responder answer) {
        const std::lock_guard lock(board.mutex);
        board.waiting.push_back(std::move(answer));
        board.changed.notify_all();
      };
    }
    return route;
  });
}

TEST(LongPoll, HundredsWaitOnOneThreadAndAreAnsweredFromAnother) {
  Board board;
  auto handler = polling(board);
  auto server = start(handler, {.handler_threads = 1});
  constexpr std::size_t kCount = 400;
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (std::size_t i = 0; i < kCount; ++i) {
    sockets.push_back(std::make_unique<RawSocket>(server->port()));
    sockets.back()->send(get("/poll"));
  }
  ASSERT_EQ(board.wait_for(kCount), kCount);
  RawSocket other(server->port());
  other.send(get("/now"));
  EXPECT_THAT(other.read_until("now"), HasSubstr("200"));
  for (auto& answer : board.take()) answer(text_response(200, "news"));
  for (auto& socket : sockets) EXPECT_THAT(socket->read_until("news"), HasSubstr("news"));
  sockets.front()->send(get("/now"));
  EXPECT_THAT(sockets.front()->read_until("now"), HasSubstr("now"));
}

TEST(LongPoll, AnswerAfterTheClientOrTheServerHasGone) {
  Board board;
  auto handler = polling(board);
  auto server = start(handler);
  {
    RawSocket gone(server->port());
    gone.send(get("/poll"));
    ASSERT_EQ(board.wait_for(1), 1U);
  }
  board.take().front()(text_response(200, "too late"));
  RawSocket waiting(server->port());
  waiting.send(get("/poll"));
  ASSERT_EQ(board.wait_for(1), 1U);
  server->stop(Millis(20'000));
  EXPECT_THAT(waiting.read_to_end(), StartsWith("HTTP/1.1 503"));
  server.reset();
  board.take().front()(text_response(200, "much too late"));
}

TEST(LongPoll, ADroppedResponderAnswers503AndASecondCallIsIgnored) {
  Board board;
  auto handler = polling(board);
  auto server = start(handler);
  RawSocket socket(server->port());
  socket.send(get("/poll"));
  ASSERT_EQ(board.wait_for(1), 1U);
  board.take();
  EXPECT_THAT(socket.read_until("try again\n"), StartsWith("HTTP/1.1 503"));
  socket.send(get("/poll"));
  ASSERT_EQ(board.wait_for(1), 1U);
  const auto answers = board.take();
  answers[0](text_response(200, "first"));
  answers[0](text_response(200, "second"));
  EXPECT_THAT(socket.read_until("first"), HasSubstr("first"));
  socket.send(get("/throw"));
  EXPECT_THAT(socket.read_until("boom"), StartsWith("HTTP/1.1 500"));
}

// ---- stopping ----

TEST(Stop, LetsRunningHandlersEndWithinTheGrace) {
  std::atomic<bool> entered{false};
  std::promise<void> stopping;
  FunctionHandler handler([&](const RequestHead&) -> std::variant<Route, Response> {
    return answering([&](Request&) {
      entered = true;
      stopping.get_future().wait_for(std::chrono::seconds(10));
      return text_response(200, "done");
    });
  });
  auto server = start(handler);
  RawSocket socket(server->port());
  RawSocket idle(server->port());
  socket.send(get("/"));
  ASSERT_TRUE(eventually([&] { return entered.load(); }));
  const auto before = std::chrono::steady_clock::now();
  std::jthread stop([&] { server->stop(Millis(20'000)); });
  EXPECT_EQ(idle.read_to_end(), "") << "closed when the stop begins";
  stopping.set_value();
  stop.join();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
  const auto answer = socket.read_to_end();
  EXPECT_THAT(answer, HasSubstr("done"));
  EXPECT_THAT(answer, HasSubstr("Connection: close"));
}

TEST(Stop, CutsUploadsAndPushesAfterTheGrace) {
  std::atomic<int> busy{0};
  FunctionHandler handler([&](const RequestHead& head) -> std::variant<Route, Response> {
    auto route = answering([&, push = head.path == "/push"](Request& request) {
      ++busy;
      if (push) {
        Response response;
        response.body = PushBody([](BodyWriter& writer) -> Result<void> {
          while (writer.open()) std::this_thread::sleep_for(Millis(5));
          return {};
        });
        return response;
      }
      char buffer[100];
      while (request.reader->read(buffer).value_or(0) > 0) {
      }
      return text_response(200, "");
    });
    route.streaming = true;
    return route;
  });
  auto server = start(handler);
  RawSocket upload(server->port());
  upload.send("PUT /up HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
  RawSocket push(server->port());
  push.send(get("/push"));
  ASSERT_TRUE(eventually([&] { return busy == 2; }));
  const auto before = std::chrono::steady_clock::now();
  server->stop(Millis(50));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
}

TEST(Push, SeesAClientThatLeft) {
  std::atomic<bool> noticed{false};
  FunctionHandler handler([&](const RequestHead&) -> std::variant<Route, Response> {
    return answering([&](Request&) {
      Response response;
      response.body = PushBody([&](BodyWriter& writer) -> Result<void> {
        while (writer.open()) std::this_thread::sleep_for(Millis(2));
        noticed = true;
        return {};
      });
      return response;
    });
  });
  auto server = start(handler);
  {
    RawSocket socket(server->port());
    socket.send(get("/"));
    socket.read_until("\r\n\r\n");
  }
  EXPECT_TRUE(eventually([&] { return noticed.load(); }));
}

}  // namespace
}  // namespace muster::net
