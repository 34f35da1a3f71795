// For tests of this folder: a handler made of a lambda, a server on a free port, and a raw socket that can
// misbehave. A RawSocket is for one thread at a time.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "base/file.h"
#include "net/detail/socket.h"
#include "net/http.h"

namespace muster::net::testing {

// Looks until it holds; false when it does not within 30 s.
inline bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(Millis(1));
  }
  return true;
}

class FunctionHandler final : public Handler {
 public:
  using Function = std::function<std::variant<Route, Response>(const RequestHead&)>;
  explicit FunctionHandler(Function function) : function_(std::move(function)) {}
  std::variant<Route, Response> route(const RequestHead& head) override { return function_(head); }

 private:
  Function function_;
};

inline Response text_response(int status, std::string body) {
  Response response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

inline std::unique_ptr<Server> start(Handler& handler, ServerOptions options = {}) {
  auto server = Server::start(options, handler);
  EXPECT_TRUE(server.has_value()) << server.error().message;
  return server ? *std::move(server) : nullptr;
}

class RawSocket {
 public:
  explicit RawSocket(std::uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  // False when the peer has closed.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const auto count = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
  void half_close() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  int fd() const { return fd_.get(); }
  // Whatever comes within `wait` of the last bytes; to the end of the connection if `until_end`.
  std::string read_for(Millis wait) {
    std::string out;
    while (detail::wait_readable(fd_.get(), wait) == detail::Wait::ready && take(out)) {
    }
    return out;
  }
  // Until `mark` has come (it is included), the peer closes, or 30 s pass.
  std::string read_until(std::string_view mark) {
    std::string out;
    while (out.find(mark) == std::string::npos &&
           detail::wait_readable(fd_.get(), Millis(30'000)) == detail::Wait::ready && take(out)) {
    }
    return out;
  }
  std::string read_to_end() {
    std::string out;
    ended_ = false;
    while (detail::wait_readable(fd_.get(), Millis(30'000)) == detail::Wait::ready && take(out)) {
    }
    return out;
  }
  bool ended() const { return ended_; }              // the peer closed in order
  bool reset_by_peer() const { return was_reset_; }  // ... or not

 private:
  bool take(std::string& out) {
    char buffer[65536];
    const auto count = ::recv(fd_.get(), buffer, sizeof buffer, 0);
    if (count > 0) out.append(buffer, static_cast<std::size_t>(count));
    if (count == 0) ended_ = true;
    if (count < 0) was_reset_ = true;
    return count > 0;
  }
  UniqueFd fd_;
  bool ended_ = false;
  bool was_reset_ = false;
};

inline Route answering(std::function<Response(Request&)> handle) {
  Route route;
  route.handle = std::move(handle);
  return route;
}

inline std::string get(std::string_view path, std::string_view more = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: h\r\n" + std::string(more) + "\r\n";
}

}  // namespace muster::net::testing
