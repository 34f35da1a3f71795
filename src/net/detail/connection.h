// One accepted connection: a state machine that is owned by exactly one side at a time.
//
// The loop's thread owns it while it waits for bytes (head, body, room to write, skipping, lingering); a pool
// thread owns it from a complete head until the answer is sent or cannot be sent at once. The hand-over goes
// through the pool's queue or the loop's, which order the memory. `state_` alone is read by the other side.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>

#include "net/detail/message_parser.h"
#include "net/detail/pool.h"
#include "net/detail/socket.h"
#include "net/http.h"

namespace muster::net::detail {

class Connection;

// What the connections of one server share. Outlives them.
struct Shared {
  Shared(const ServerOptions& server_options, Handler& server_handler)
      : options(server_options),
        handler(server_handler),
        requests(server_options.handler_threads),
        uploads(server_options.handler_threads),
        pushes(2 * server_options.handler_threads) {}
  const ServerOptions options;
  Handler& handler;
  Pool requests;  // route(), and handlers whose body is there
  Pool uploads;   // handlers that pull their body from the socket
  Pool pushes;    // bodies that are pushed
  std::atomic<bool> stopping{false};
  std::atomic<int> connections{0};
};

// Lets threads outside post to a loop that may be gone: a responder can be called after the server has ended.
struct Gate {
  std::mutex mutex;
  boost::asio::io_context* context = nullptr;  // null once the loop has ended
};

// One thread with its connections. The set belongs to that thread.
struct Loop {
  boost::asio::io_context context{1};
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::set<std::shared_ptr<Connection>> connections;
  std::thread thread;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, Loop& loop, boost::asio::ip::tcp::socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // All three on the loop's thread.
  void start();
  void refuse_overload();  // answers 503 in place of start()
  void begin_stop();       // idle ones close, long polls are answered 503
  void cut();              // ends the socket under whoever uses it

 private:
  friend class StreamReader;
  friend class PushWriter;
  struct Ticket;

  enum class State { head, body, pool, waiting_answer, writing, skipping, lingering, closed };
  enum class Progress { done, wait, failed };

  int fd() { return socket_.native_handle(); }
  std::string_view buffered() const { return std::string_view(in_).substr(in_at_); }
  void consume(std::size_t bytes);
  void on_loop(void (Connection::*step)());

  // loop
  void read_head();
  bool take_head();
  void begin_exchange(ParsedRequest request);
  void read_body();
  void skip_body();
  void linger();
  void write_on();
  void after_answer();
  void on_answer(std::uint64_t exchange, Response response);
  void on_readable();
  void arm_read();
  void arm_write();
  void set_deadline(Millis from_now);
  void clear_deadline();
  void arm_timer();
  void on_timeout();
  void close();

  // pool
  void route();
  void run_handler();
  void push(const PushBody& body, std::string head, bool chunked);

  // either, whoever owns the connection
  Progress pull_body();
  Progress pull_fixed_body();
  Progress pull_chunked_body();
  Progress refuse_body(int status, std::string_view message);
  bool body_complete() const;
  void send_continue();
  Response refusal(int status, std::string_view message) const;
  Response failure(std::string_view what, const std::exception& error) const;
  void respond(Response response);
  void settle_rest_of_body();
  void answer_sent();

  Shared& shared_;
  Loop& loop_;
  boost::asio::ip::tcp::socket socket_;
  std::string peer_;
  std::atomic<State> state_{State::head};

  std::string in_;  // received and not consumed: in_[in_at_..]
  std::size_t in_at_ = 0;
  std::size_t head_scanned_ = 0;

  // of the exchange in progress
  std::uint64_t exchange_ = 0;
  Request request_;
  Route route_;
  bool keep_alive_ = true;
  bool http10_ = false;
  bool head_only_ = false;  // HEAD: no body in the answer
  bool chunked_ = false;
  bool continue_due_ = false;    // the client waits for 100 Continue
  std::uint64_t body_left_ = 0;  // of a body with Content-Length
  std::unique_ptr<ChunkedDecoder> decoder_;
  Outgoing out_;

  // loop only
  boost::asio::steady_timer timer_;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::time_point::max();
  std::chrono::steady_clock::time_point linger_end_;
  bool timer_armed_ = false;
  bool read_armed_ = false;
  bool closed_ = false;
};

}  // namespace muster::net::detail
