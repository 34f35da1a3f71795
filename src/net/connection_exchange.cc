// One exchange: routing, the body, the handler and its answer. Runs on whichever thread owns the connection.
#include <algorithm>
#include <array>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <exception>

#include "base/text.h"
#include "net/detail/connection.h"
#include "net/detail/response_head.h"

namespace muster::net::detail {
namespace {

constexpr std::size_t kPiece = 64 << 10;
// An unread rest of a body up to this is skipped so that the connection lives on; above, it is closed.
constexpr std::uint64_t kSkipMax = 256 << 10;

Response plain(int status, std::string_view message) {
  Response response{
      .status = status, .headers = {}, .body = std::string(message) + "\n", .content_length_of_head = {}};
  response.headers.set("Content-Type", "text/plain; charset=utf-8");
  return response;
}

// Without its query, which can hold a signature.
std::string request_line(const RequestHead& head) { return head.method + " " + head.path.substr(0, 200); }

std::uint64_t body_length(const Response& response) {
  if (const auto* text = std::get_if<std::string>(&response.body)) return text->size();
  if (const auto* file = std::get_if<FileRange>(&response.body)) return file->length;
  if (const auto* files = std::get_if<FileSequence>(&response.body)) return files->length;
  return 0;
}

}  // namespace

// The body of a streamed request, taken from the socket on the handler's thread.
class StreamReader final : public BodyReader {
 public:
  explicit StreamReader(Connection& connection) : c_(connection) {}

  Result<std::size_t> read(std::span<char> buffer) override {
    if (buffer.empty()) return std::size_t{0};
    for (;;) {
      if (failed_) return fail(ErrorCode::unavailable, "the body of the request has failed before");
      if (c_.body_complete()) return std::size_t{0};
      MUSTER_TRY(const auto taken, take(buffer));
      if (taken > 0) return taken;
      if (c_.body_complete()) return std::size_t{0};
      c_.send_continue();
      MUSTER_TRY(const auto direct, refill(buffer));
      if (direct > 0) return direct;
    }
  }

 private:
  // From what has been received already.
  Result<std::size_t> take(std::span<char> buffer) {
    if (c_.buffered().empty()) return std::size_t{0};
    if (!c_.chunked_) {
      const auto count = static_cast<std::size_t>(
          std::min<std::uint64_t>({buffer.size(), c_.buffered().size(), c_.body_left_}));
      std::copy_n(c_.buffered().data(), count, buffer.data());
      c_.consume(count);
      c_.body_left_ -= count;
      return count;
    }
    auto step = c_.decoder_->decode(c_.buffered(), buffer);
    if (!step) return broken(step.error());
    c_.consume(step->consumed);
    total_ += step->produced;
    if (total_ > c_.route_.body_max) {
      return broken({ErrorCode::resource_exhausted,
                     "the body is larger than " + std::to_string(c_.route_.body_max) + " bytes"});
    }
    return step->produced;
  }

  // Waits for bytes. A body with Content-Length goes straight into `buffer`, a chunked one into the input.
  Result<std::size_t> refill(std::span<char> buffer) {
    std::array<char, kPiece> piece;
    auto* target = c_.chunked_ ? piece.data() : buffer.data();
    const auto room = c_.chunked_
                          ? piece.size()
                          : static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), c_.body_left_));
    const auto got = receive(c_.fd(), target, room);
    if (got.what == Attempt::What::would_block) {
      const auto idle = c_.shared_.options.body_idle_timeout;
      switch (wait_readable(c_.fd(), idle)) {
        case Wait::ready:
          return std::size_t{0};
        case Wait::timed_out:
          return broken({ErrorCode::timeout, "the body of the request stopped for " + format_duration(idle)});
        case Wait::failed:
          break;
      }
      return broken({ErrorCode::unavailable, "the connection is gone"});
    }
    if (got.what != Attempt::What::moved) {
      return broken({ErrorCode::unavailable, "the client went away in the middle of the body"});
    }
    if (c_.chunked_) {
      if (c_.buffered().size() > 2 * kPiece)
        return broken({ErrorCode::invalid_argument, "broken chunked body"});
      c_.in_.append(piece.data(), got.bytes);
      return std::size_t{0};
    }
    c_.body_left_ -= got.bytes;
    return got.bytes;
  }

  tl::unexpected<Error> broken(Error error) {
    failed_ = true;
    c_.keep_alive_ = false;
    return tl::unexpected(std::move(error));
  }

  Connection& c_;
  std::uint64_t total_ = 0;
  bool failed_ = false;
};

class PushWriter final : public BodyWriter {
 public:
  PushWriter(Connection& connection, bool chunked) : c_(connection), chunked_(chunked) {}

  Result<void> write(std::string_view piece) override {
    if (piece.empty()) return {};
    if (c_.shared_.stopping) return fail(ErrorCode::unavailable, "the service is stopping");
    if (!chunked_) return send_all(c_.fd(), piece, c_.shared_.options.body_idle_timeout);
    std::array<char, 20> size{};
    auto* end = std::to_chars(size.data(), size.data() + 16, piece.size(), 16).ptr;
    std::string text(size.data(), end);
    text += "\r\n";
    text += piece;
    text += "\r\n";
    return send_all(c_.fd(), text, c_.shared_.options.body_idle_timeout);
  }

  bool open() const override { return !c_.shared_.stopping && !peer_closed(c_.fd()); }

 private:
  Connection& c_;
  bool chunked_;
};

// Answers a long poll exactly once, whatever happens to the responder.
struct Connection::Ticket {
  Ticket(std::shared_ptr<Gate> the_gate, std::weak_ptr<Connection> the_connection, std::uint64_t the_exchange)
      : gate(std::move(the_gate)), connection(std::move(the_connection)), exchange(the_exchange) {}
  ~Ticket() { answer(plain(503, "the request was given up; try again")); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  void answer(Response response) {
    if (answered.exchange(true)) return;
    const std::lock_guard lock(gate->mutex);
    if (gate->context == nullptr) return;
    auto held = std::make_shared<Response>(std::move(response));
    boost::asio::post(*gate->context, [weak = connection, number = exchange, held] {
      if (const auto self = weak.lock()) self->on_answer(number, std::move(*held));
    });
  }

  std::shared_ptr<Gate> gate;
  std::weak_ptr<Connection> connection;
  std::uint64_t exchange;
  std::atomic<bool> answered{false};
};

// ---- routing and handling, on a pool thread ----

void Connection::route() {
  std::optional<Response> refused;
  try {
    auto decision = shared_.handler.route(request_.head);
    if (auto* response = std::get_if<Response>(&decision)) {
      refused = std::move(*response);
    } else {
      route_ = std::move(std::get<Route>(decision));
    }
  } catch (const std::exception& error) {
    refused = failure(request_line(request_.head), error);
  }
  if (refused) return respond(std::move(*refused));
  if (request_.head.content_length.value_or(0) > route_.body_max) {
    return respond(refusal(413, "the body has " + std::to_string(*request_.head.content_length) +
                                    " bytes, at most " + std::to_string(route_.body_max) +
                                    " are taken here"));
  }
  if (route_.streaming) {
    // What is here already needs no thread of its own to wait on.
    const bool here = !chunked_ && body_left_ <= buffered().size();
    if (here) return run_handler();
    if (!shared_.uploads.submit([self = shared_from_this()] { self->run_handler(); }))
      on_loop(&Connection::close);
    return;
  }
  switch (pull_body()) {
    case Progress::done:
      return run_handler();
    case Progress::wait:
      return on_loop(&Connection::read_body);
    case Progress::failed:
      return;
  }
}

void Connection::run_handler() {
  if (route_.handle_later) {
    const auto handle_later = std::move(route_.handle_later);
    const auto ticket = std::make_shared<Ticket>(loop_.gate, weak_from_this(), exchange_);
    auto request = std::move(request_);
    const auto what = request_line(request.head);
    const auto self = shared_from_this();
    state_ = State::waiting_answer;  // from here on the loop may answer at any time
    if (shared_.stopping) return ticket->answer(plain(503, "the service is stopping"));
    try {
      handle_later(std::move(request), [ticket](Response response) { ticket->answer(std::move(response)); });
    } catch (const std::exception& error) {
      ticket->answer(failure(what, error));
    }
    return;
  }
  StreamReader reader(*this);
  if (route_.streaming) request_.reader = &reader;
  Response response;
  try {
    response = route_.handle(request_);
  } catch (const std::exception& error) {
    response = failure(request_line(request_.head), error);
  }
  request_.reader = nullptr;
  respond(std::move(response));
}

void Connection::push(const PushBody& body, std::string head, bool chunked) {
  bool whole = send_all(fd(), head, shared_.options.body_idle_timeout).has_value();
  if (whole) {
    PushWriter writer(*this, chunked);
    try {
      whole = body(writer).has_value();
    } catch (const std::exception& error) {
      failure(request_line(request_.head), error);
      whole = false;
    }
    if (whole && chunked) whole = send_all(fd(), "0\r\n\r\n", shared_.options.body_idle_timeout).has_value();
  }
  // A body that broke off must not look complete: the connection ends without the last chunk.
  if (!whole) return on_loop(&Connection::close);
  answer_sent();
}

// ---- the body ----

bool Connection::body_complete() const { return chunked_ ? decoder_->done() : body_left_ == 0; }

void Connection::send_continue() {
  if (!continue_due_) return;
  continue_due_ = false;
  if (!buffered().empty()) return;  // the client did not wait
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  // A fresh socket buffer has room for it; a client for which it has not gets the final answer later.
  ::send(fd(), kContinue.data(), kContinue.size(), MSG_NOSIGNAL);
}

Connection::Progress Connection::pull_body() {
  if (body_complete()) return Progress::done;
  send_continue();
  return chunked_ ? pull_chunked_body() : pull_fixed_body();
}

Connection::Progress Connection::pull_fixed_body() {
  auto& body = request_.body;
  const auto have = static_cast<std::size_t>(std::min<std::uint64_t>(body_left_, buffered().size()));
  body.append(buffered().substr(0, have));
  consume(have);
  body_left_ -= have;
  while (body_left_ > 0) {
    const auto old = body.size();
    body.resize(old + static_cast<std::size_t>(std::min<std::uint64_t>(body_left_, kPiece)));
    const auto got = receive(fd(), body.data() + old, body.size() - old);
    body.resize(old + (got.what == Attempt::What::moved ? got.bytes : 0));
    if (got.what == Attempt::What::would_block) return Progress::wait;
    if (got.what != Attempt::What::moved) {
      on_loop(&Connection::close);
      return Progress::failed;
    }
    body_left_ -= got.bytes;
  }
  return Progress::done;
}

Connection::Progress Connection::pull_chunked_body() {
  std::array<char, kPiece> piece;
  for (;;) {
    while (!buffered().empty() && !decoder_->done()) {
      const auto step = decoder_->decode(buffered(), piece);
      if (!step) return refuse_body(400, step.error().message);
      consume(step->consumed);
      request_.body.append(piece.data(), step->produced);
      if (request_.body.size() > route_.body_max) {
        return refuse_body(413, "the body is larger than the " + std::to_string(route_.body_max) +
                                    " bytes that are taken here");
      }
      if (step->consumed == 0 && step->produced == 0) break;
    }
    if (decoder_->done()) return Progress::done;
    if (buffered().size() > 2 * kPiece)
      return refuse_body(400, "broken chunked body: a chunk head without end");
    const auto got = receive(fd(), piece.data(), piece.size());
    if (got.what == Attempt::What::would_block) return Progress::wait;
    if (got.what != Attempt::What::moved) {
      on_loop(&Connection::close);
      return Progress::failed;
    }
    in_.append(piece.data(), got.bytes);
  }
}

Connection::Progress Connection::refuse_body(int status, std::string_view message) {
  keep_alive_ = false;
  respond(refusal(status, message));
  return Progress::failed;
}

// ---- the answer ----

Response Connection::refusal(int status, std::string_view message) const {
  if (route_.refuse) {
    try {
      return route_.refuse(status, message);
    } catch (const std::exception&) {
      return plain(status, message);
    }
  }
  return plain(status, message);
}

// The answer for a handler that has thrown, which is said to the operator, too.
Response Connection::failure(std::string_view what, const std::exception& error) const {
  if (const auto& note = shared_.options.note) note(std::string(what) + " has failed: " + error.what());
  return plain(500, std::string("internal error: ") + error.what());
}

// Decides whether the connection can live on when the handler has not read its whole body.
void Connection::settle_rest_of_body() {
  if (body_complete()) return;
  // A client that still waits for 100 Continue may send the body or not: the next bytes cannot be told apart.
  if (chunked_ || continue_due_ || body_left_ > kSkipMax) keep_alive_ = false;
}

void Connection::respond(Response response) {
  settle_rest_of_body();
  if (shared_.stopping || iequals(response.headers.get("Connection"), "close")) keep_alive_ = false;
  const bool bodyless = head_only_ || !status_has_body(response.status);
  auto* pushed = std::get_if<PushBody>(&response.body);
  HeadFacts facts{.content_length = {}, .chunked = false, .keep_alive = true, .http10 = http10_};
  if (pushed != nullptr && !bodyless) {
    facts.chunked = !http10_;
    if (http10_) keep_alive_ = false;
  } else if (head_only_) {
    if (pushed == nullptr)
      facts.content_length = response.content_length_of_head.value_or(body_length(response));
    if (pushed != nullptr) facts.content_length = response.content_length_of_head;
  } else if (!bodyless) {
    facts.content_length = body_length(response);
  }
  facts.keep_alive = keep_alive_;
  auto head = response_head(response.status, response.headers, facts);
  if (pushed != nullptr && !bodyless) {
    const bool started = shared_.pushes.submit_if_free(
        [self = shared_from_this(), body = std::move(*pushed), text = std::move(head),
         chunked = facts.chunked] { self->push(body, text, chunked); });
    if (!started) respond(refusal(503, "too many streams are open; try again"));
    return;
  }
  if (bodyless) {
    out_ = Outgoing(std::move(head));
  } else if (auto* file = std::get_if<FileRange>(&response.body)) {
    out_ = Outgoing(std::move(head), std::move(*file));
  } else if (auto* files = std::get_if<FileSequence>(&response.body)) {
    out_ = Outgoing(std::move(head), std::move(*files));
  } else {
    out_ = Outgoing(std::move(head), std::move(std::get<std::string>(response.body)));
  }
  switch (out_.pump(fd())) {
    case Outgoing::State::done:
      return answer_sent();
    case Outgoing::State::would_block:
      return on_loop(&Connection::write_on);
    case Outgoing::State::failed:
      return on_loop(&Connection::close);
  }
}

void Connection::answer_sent() { on_loop(&Connection::after_answer); }

}  // namespace muster::net::detail
