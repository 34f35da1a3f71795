// The loop's side of a connection: waiting, deadlines, lingering. connection_exchange.cc has the rest.
#include "net/detail/connection.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include "net/detail/response_head.h"

namespace muster::net::detail {
namespace {
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadPiece = 16 << 10;
constexpr Millis kLingerIdle{3'000};    // for the peer to notice our answer and stop sending
constexpr Millis kLingerTotal{60'000};  // however much it still sends
}  // namespace

Connection::Connection(Shared& shared, Loop& loop, boost::asio::ip::tcp::socket socket)
    : shared_(shared), loop_(loop), socket_(std::move(socket)), timer_(loop.context) {
  error_code ignored;
  socket_.native_non_blocking(true, ignored);
  set_no_delay(fd());
  const auto peer = socket_.remote_endpoint(ignored);
  if (!ignored) {
    const auto host = peer.address().to_string();
    peer_ = (peer.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(peer.port());
  }
  ++shared_.connections;
}

Connection::~Connection() { --shared_.connections; }

void Connection::start() {
  set_deadline(shared_.options.head_timeout);
  read_head();
}

void Connection::refuse_overload() {
  keep_alive_ = false;
  Response response{.status = 503,
                    .headers = {},
                    .body = std::string("too many connections; try again\n"),
                    .content_length_of_head = {}};
  response.headers.set("Retry-After", "1");
  respond(std::move(response));
}

void Connection::consume(std::size_t bytes) {
  in_at_ += bytes;
  if (in_at_ == in_.size()) {
    in_.clear();
    in_at_ = 0;
  }
}

void Connection::on_loop(void (Connection::*step)()) {
  boost::asio::dispatch(loop_.context, [self = shared_from_this(), step] { (self.get()->*step)(); });
}

// ---- head ----

void Connection::read_head() {
  state_ = State::head;
  while (!take_head()) {
    const bool first_bytes = buffered().empty();
    char piece[kReadPiece];
    const auto got = receive(fd(), piece, sizeof piece);
    if (got.what == Attempt::What::would_block) return arm_read();
    if (got.what != Attempt::What::moved) return close();
    if (first_bytes) set_deadline(shared_.options.head_timeout);
    in_.append(piece, got.bytes);
  }
}

// True when the buffer's head has been taken, well or badly, and the connection has gone on.
bool Connection::take_head() {
  while (buffered().starts_with("\r\n")) consume(2);  // RFC 9112, 2.2
  const auto text = buffered();
  if (text.empty()) return false;
  const auto refuse = [&](int status, std::string_view message) {
    keep_alive_ = false;
    head_only_ = false;
    respond(refusal(status, message));
    return true;
  };
  const bool token =
      (text[0] >= 'A' && text[0] <= 'Z') || (text[0] >= 'a' && text[0] <= 'z') || text[0] == '\r';
  if (!token) return refuse(400, "this is not an HTTP request");
  const auto length = find_head_end(text, head_scanned_);
  const auto limit = shared_.options.head_bytes_max;
  if (length > limit || (length == 0 && text.size() > limit)) {
    return refuse(431, "the head of the request is larger than " + std::to_string(limit) + " bytes");
  }
  if (length == 0) return false;
  head_scanned_ = 0;
  auto parsed = parse_request_head(text.substr(0, length));
  consume(length);
  if (!parsed) {
    return refuse(parsed.error().code == ErrorCode::unsupported ? 501 : 400, parsed.error().message);
  }
  begin_exchange(*std::move(parsed));
  return true;
}

void Connection::begin_exchange(ParsedRequest parsed) {
  ++exchange_;
  keep_alive_ = parsed.keep_alive;
  http10_ = parsed.http10;
  head_only_ = parsed.head.method == "HEAD";
  chunked_ = parsed.chunked;
  continue_due_ = parsed.expect_continue;
  body_left_ = parsed.head.content_length.value_or(0);
  decoder_ = chunked_ ? std::make_unique<ChunkedDecoder>() : nullptr;
  request_ = Request{};
  request_.head = std::move(parsed.head);
  request_.head.peer = peer_;
  route_ = Route{};
  clear_deadline();
  state_ = State::pool;
  if (!shared_.requests.submit([self = shared_from_this()] { self->route(); })) close();
}

// ---- body of a route that does not stream ----

void Connection::read_body() {
  state_ = State::body;
  switch (pull_body()) {
    case Progress::wait:
      set_deadline(shared_.options.body_idle_timeout);
      return arm_read();
    case Progress::failed:
      return;
    case Progress::done:
      clear_deadline();
      state_ = State::pool;
      if (!shared_.requests.submit([self = shared_from_this()] { self->run_handler(); })) close();
  }
}

// ---- answer ----

void Connection::write_on() {
  state_ = State::writing;
  switch (out_.pump(fd())) {
    case Outgoing::State::done:
      return answer_sent();
    case Outgoing::State::failed:
      return close();
    case Outgoing::State::would_block:
      set_deadline(shared_.options.body_idle_timeout);
      return arm_write();
  }
}

void Connection::after_answer() {
  out_ = Outgoing();
  request_ = Request{};
  route_ = Route{};
  if (!keep_alive_) return linger();
  if (body_left_ > 0) {
    set_deadline(shared_.options.body_idle_timeout);
    return skip_body();
  }
  if (shared_.stopping && buffered().empty()) return close();
  set_deadline(buffered().empty() ? shared_.options.keep_alive_timeout : shared_.options.head_timeout);
  head_scanned_ = 0;
  read_head();
}

void Connection::skip_body() {
  state_ = State::skipping;
  const auto have = std::min<std::uint64_t>(body_left_, buffered().size());
  consume(static_cast<std::size_t>(have));
  body_left_ -= have;
  while (body_left_ > 0) {
    const auto got = discard(fd(), static_cast<std::size_t>(body_left_));
    if (got.what == Attempt::What::would_block) return arm_read();
    if (got.what != Attempt::What::moved) return close();
    body_left_ -= got.bytes;
  }
  after_answer();
}

// Closing with unread bytes would reset the connection, and the peer could lose the answer: so say that no
// more comes from us, and throw away what still arrives until the peer closes.
void Connection::linger() {
  if (state_ != State::lingering) {
    error_code ignored;
    socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
    linger_end_ = Clock::now() + kLingerTotal;
    state_ = State::lingering;
  }
  in_.clear();
  in_at_ = 0;
  for (int round = 0; round < 16; ++round) {
    const auto got = discard(fd(), 4 << 20);
    if (got.what == Attempt::What::would_block) break;
    if (got.what != Attempt::What::moved) return close();
  }
  if (Clock::now() > linger_end_ || shared_.stopping) return close();
  set_deadline(kLingerIdle);
  arm_read();
}

void Connection::on_answer(std::uint64_t exchange, Response response) {
  if (state_ != State::waiting_answer || exchange != exchange_) return;
  state_ = State::writing;
  respond(std::move(response));
}

// ---- waiting ----

void Connection::on_readable() {
  switch (state_.load()) {
    case State::head:
      return read_head();
    case State::body:
      return read_body();
    case State::skipping:
      set_deadline(shared_.options.body_idle_timeout);
      return skip_body();
    case State::lingering:
      return linger();
    default:
      return;  // a wait from before a time-out: bytes stay where they are
  }
}

void Connection::arm_read() {
  if (read_armed_ || closed_) return;
  read_armed_ = true;
  socket_.async_wait(boost::asio::ip::tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    self->read_armed_ = false;
    if (!error && !self->closed_) self->on_readable();
  });
}

void Connection::arm_write() {
  socket_.async_wait(boost::asio::ip::tcp::socket::wait_write, [self = shared_from_this()](error_code error) {
    if (!error && !self->closed_ && self->state_ == State::writing) self->write_on();
  });
}

void Connection::set_deadline(Millis from_now) {
  deadline_ = Clock::now() + from_now;
  // Later deadlines are noticed when the timer fires: most requests never touch it.
  if (!timer_armed_ || timer_.expiry() > deadline_) arm_timer();
}

void Connection::clear_deadline() { deadline_ = Clock::time_point::max(); }

void Connection::arm_timer() {
  timer_armed_ = true;
  timer_.expires_at(deadline_);
  timer_.async_wait([weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (error || !self || self->closed_) return;
    self->timer_armed_ = false;
    if (self->deadline_ == Clock::time_point::max()) return;
    if (Clock::now() < self->deadline_) return self->arm_timer();
    self->clear_deadline();
    self->on_timeout();
  });
}

void Connection::on_timeout() {
  const auto state = state_.load();
  if (state == State::head && !buffered().empty()) {
    keep_alive_ = false;
    return respond(refusal(408, "the head of the request did not arrive in time"));
  }
  if (state == State::body) {
    keep_alive_ = false;
    return respond(refusal(408, "the body of the request stopped arriving"));
  }
  close();
}

void Connection::begin_stop() {
  switch (state_.load()) {
    case State::head:
      if (buffered().empty()) close();
      return;
    case State::waiting_answer:
      return on_answer(exchange_, refusal(503, "the service is stopping"));
    case State::lingering:
      return close();
    default:
      return;
  }
}

void Connection::cut() {
  if (!closed_) ::shutdown(fd(), SHUT_RDWR);
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  state_ = State::closed;
  error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
  loop_.connections.erase(shared_from_this());
}

}  // namespace muster::net::detail
