// The client: blocking calls on non-blocking sockets, each wait bounded by poll(). No event loop, no threads.
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <set>

#include "base/text.h"
#include "net/detail/message_parser.h"
#include "net/detail/socket.h"
#include "net/http.h"

namespace muster::net {
namespace {

using detail::Attempt;
using detail::Outgoing;
using detail::Wait;
using Clock = std::chrono::steady_clock;

constexpr Millis kConnectMax{10'000};
constexpr Millis kIdleMax{4'000};       // servers close idle connections from 5 s on: do not race with them
constexpr Millis kContinueWait{1'000};  // then the body is sent without 100 Continue
constexpr std::size_t kPiece = 256 << 10;
constexpr std::size_t kHeadMax = 256 << 10;
constexpr std::uint64_t kBodyMax = 64 << 20;

bool is_idempotent(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "PUT" || method == "DELETE" || method == "OPTIONS";
}

struct Link {
  UniqueFd fd;
  Clock::time_point idle_since;
  std::string in;  // received and not consumed
  std::string buffer;
};

// Whether the failure may be cured by a fresh connection: nothing of an answer had come.
struct Failure {
  Error error;
  bool before_answer = false;
};
template <typename T>
using Step = tl::expected<T, Failure>;

class PooledClient final : public Client {
 public:
  PooledClient(std::string host, std::uint16_t port, int connections_max)
      : host_(std::move(host)), port_(port), connections_max_(std::max(1, connections_max)) {}

  Result<ClientResponse> send(const ClientRequest& request, const Sink& sink,
                              const HeadSink& on_head) override;
  void cancel() override;

 private:
  Result<std::unique_ptr<Link>> checkout(Millis timeout, bool fresh, bool& reused);
  void give_back(std::unique_ptr<Link> link, bool reusable);
  Result<UniqueFd> dial(Millis timeout);
  Result<UniqueFd> connect_to(const addrinfo& address, Millis timeout);
  struct Sinks {
    const Sink& body;
    const HeadSink& head;
  };
  Step<ClientResponse> exchange(Link& link, const ClientRequest& request, const Sinks& sinks, bool& reusable);
  std::string head_of(const ClientRequest& request) const;
  Step<bool> send_request(Link& link, const ClientRequest& request);
  Step<bool> await_continue(Link& link);
  Step<detail::ParsedResponse> read_head(Link& link, Millis timeout, bool& more_in_a_moment);
  Result<void> read_body(Link& link, const detail::ParsedResponse& head, Millis timeout, const Sink& sink);
  Result<void> read_chunked(Link& link, Millis timeout, const Sink& sink);
  Result<std::size_t> receive_some(Link& link, Millis timeout, std::uint64_t bytes_max);
  Result<std::size_t> more(Link& link, Millis timeout);
  Error gone(std::string_view what) const;
  std::string where() const { return host_ + ":" + std::to_string(port_); }

  const std::string host_;
  const std::uint16_t port_;
  const int connections_max_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<Link>> idle_;
  std::set<int> in_use_;  // descriptors, for cancel()
  int open_ = 0;          // connections in use
  std::atomic<bool> cancelled_{false};
};

Error PooledClient::gone(std::string_view what) const {
  if (cancelled_) return {ErrorCode::cancelled, "the request to " + where() + " was cancelled"};
  return {ErrorCode::unavailable, where() + ": " + std::string(what)};
}

// ---- connections ----

Result<UniqueFd> PooledClient::connect_to(const addrinfo& address, Millis timeout) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("socket");
  detail::set_no_delay(fd.get());
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS)
    return tl::unexpected(gone("cannot connect: " + fail_errno("connect").value().message));
  if (detail::wait_writable(fd.get(), timeout) != Wait::ready) {
    return fail(ErrorCode::timeout,
                where() + " did not accept the connection within " + format_duration(timeout));
  }
  int why = 0;
  socklen_t size = sizeof why;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &why, &size);
  if (why != 0) return tl::unexpected(gone("cannot connect: " + fail_errno("connect", why).value().message));
  return fd;
}

Result<UniqueFd> PooledClient::dial(Millis timeout) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int why = ::getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found);
  if (why != 0) return tl::unexpected(gone(std::string("cannot resolve the host: ") + ::gai_strerror(why)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Result<UniqueFd> last = tl::unexpected(gone("the host has no address"));
  for (const auto* address = found; address != nullptr; address = address->ai_next) {
    last = connect_to(*address, std::min(timeout, kConnectMax));
    if (last) return last;
  }
  return last;
}

Result<std::unique_ptr<Link>> PooledClient::checkout(Millis timeout, bool fresh, bool& reused) {
  {
    std::unique_lock lock(mutex_);
    const bool free =
        freed_.wait_for(lock, timeout, [this] { return cancelled_ || open_ < connections_max_; });
    if (cancelled_) return tl::unexpected(gone(""));
    if (!free) {
      return fail(ErrorCode::timeout, "all " + std::to_string(connections_max_) + " connections to " +
                                          where() + " were busy for " + format_duration(timeout));
    }
    ++open_;
    while (!idle_.empty()) {
      auto link = std::move(idle_.back());
      idle_.pop_back();
      if (fresh || Clock::now() - link->idle_since > kIdleMax || detail::is_stale(link->fd.get())) continue;
      in_use_.insert(link->fd.get());
      reused = true;
      return link;
    }
  }
  auto link = std::make_unique<Link>();
  auto fd = dial(timeout);
  const std::lock_guard lock(mutex_);
  if (!fd || cancelled_) {
    --open_;
    freed_.notify_one();
    if (fd) return tl::unexpected(gone(""));
    return tl::unexpected(std::move(fd).error());
  }
  link->fd = std::move(*fd);
  in_use_.insert(link->fd.get());
  reused = false;
  return link;
}

void PooledClient::give_back(std::unique_ptr<Link> link, bool reusable) {
  const std::lock_guard lock(mutex_);
  --open_;
  in_use_.erase(link->fd.get());
  if (reusable && !cancelled_ && link->in.empty()) {
    link->idle_since = Clock::now();
    idle_.push_back(std::move(link));
  }
  freed_.notify_one();
}

void PooledClient::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  idle_.clear();
  for (const int fd : in_use_) ::shutdown(fd, SHUT_RDWR);
  freed_.notify_all();
}

// ---- one exchange ----

std::string PooledClient::head_of(const ClientRequest& request) const {
  std::string out = request.method + " " + request.target + " HTTP/1.1\r\n";
  const auto add = [&](std::string_view name, std::string_view value) {
    out += name;
    out += ": ";
    for (const char c : value) out += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
    out += "\r\n";
  };
  if (!request.headers.has("Host")) {
    add("Host", host_in_url(host_) + (port_ == 80 ? "" : ":" + std::to_string(port_)));
  }
  for (const auto& [name, value] : request.headers.all()) {
    if (!iequals(name, "content-length") && !iequals(name, "connection")) add(name, value);
  }
  const auto* text = std::get_if<std::string>(&request.body);
  const std::uint64_t length = text != nullptr ? text->size() : std::get<FileRange>(request.body).length;
  if (length > 0 || request.method == "PUT" || request.method == "POST") {
    add("Content-Length", std::to_string(length));
  }
  if (length > 0 && request.expect_continue) add("Expect", "100-continue");
  out += "\r\n";
  return out;
}

// At most `bytes_max` into link.buffer; waits for the first.
Result<std::size_t> PooledClient::receive_some(Link& link, Millis timeout, std::uint64_t bytes_max) {
  if (link.buffer.size() < kPiece) link.buffer.resize(kPiece);
  for (;;) {
    const auto room = static_cast<std::size_t>(std::min<std::uint64_t>(bytes_max, link.buffer.size()));
    const auto got = detail::receive(link.fd.get(), link.buffer.data(), room);
    if (got.what == Attempt::What::moved) return got.bytes;
    if (got.what == Attempt::What::end) return tl::unexpected(gone("the connection was closed early"));
    if (got.what == Attempt::What::failed) {
      return tl::unexpected(
          gone("the connection broke: " + fail_errno("recv", got.error_number).value().message));
    }
    const auto waited = detail::wait_readable(link.fd.get(), timeout);
    if (waited == Wait::timed_out) {
      return fail(ErrorCode::timeout, where() + " sent nothing for " + format_duration(timeout));
    }
  }
}

Result<std::size_t> PooledClient::more(Link& link, Millis timeout) {
  MUSTER_TRY(const auto got, receive_some(link, timeout, kPiece));
  link.in.append(link.buffer.data(), got);
  return got;
}

// True: go on with the body. False: a final answer has come instead.
Step<bool> PooledClient::await_continue(Link& link) {
  const auto end = Clock::now() + kContinueWait;
  std::size_t scanned = 0;
  for (;;) {
    if (const auto length = detail::find_head_end(link.in, scanned); length > 0) {
      const auto head = detail::parse_response_head(std::string_view(link.in).substr(0, length));
      if (!head) return tl::unexpected(Failure{head.error(), false});
      if (head->status / 100 != 1) return false;
      link.in.erase(0, length);
      if (head->status == 100) return true;
      scanned = 0;
      continue;
    }
    const auto left = std::chrono::ceil<Millis>(end - Clock::now());
    if (left.count() <= 0) return true;
    auto got = more(link, left);
    if (!got && got.error().code == ErrorCode::timeout) return true;
    if (!got) return tl::unexpected(Failure{std::move(got).error(), link.in.empty()});
  }
}

// True: all of the request has gone out. False: the answer came before that; the connection is not reusable.
Step<bool> PooledClient::send_request(Link& link, const ClientRequest& request) {
  auto head = head_of(request);
  if (request.expect_continue && head.find("Expect: 100-continue\r\n") != std::string::npos) {
    auto sent = detail::send_all(link.fd.get(), head, request.timeout);
    if (!sent) return tl::unexpected(Failure{gone(sent.error().message), true});
    auto go = await_continue(link);
    if (!go || !*go) return go;
    head.clear();
  }
  const auto* text = std::get_if<std::string>(&request.body);
  auto out = text != nullptr ? Outgoing(std::move(head), *text)
                             : Outgoing(std::move(head), std::get<FileRange>(request.body));
  for (;;) {
    switch (out.pump(link.fd.get())) {
      case Outgoing::State::done:
        return true;
      case Outgoing::State::failed:
        // A server that refuses a body answers and closes: its answer may be waiting.
        if (detail::wait_readable(link.fd.get(), Millis(0)) == Wait::ready && more(link, Millis(0)))
          return false;
        return tl::unexpected(
            Failure{out.error_number() == EIO
                        ? Error{ErrorCode::io, "the file to send is shorter than it was, or cannot be read"}
                        : gone("the connection broke while sending: " +
                               fail_errno("send", out.error_number()).value().message),
                    true});
      case Outgoing::State::would_block:
        break;
    }
    if (detail::wait_writable(link.fd.get(), request.timeout) != Wait::ready) {
      return tl::unexpected(Failure{
          {ErrorCode::timeout, where() + " took nothing for " + format_duration(request.timeout)}, false});
    }
    if (detail::wait_readable(link.fd.get(), Millis(0)) == Wait::ready) return false;
  }
}

Step<detail::ParsedResponse> PooledClient::read_head(Link& link, Millis timeout, bool& interim) {
  std::size_t scanned = 0;
  const auto end = Clock::now() + timeout;
  for (;;) {
    if (const auto length = detail::find_head_end(link.in, scanned); length > 0) {
      auto head = detail::parse_response_head(std::string_view(link.in).substr(0, length));
      if (!head) return tl::unexpected(Failure{head.error(), false});
      link.in.erase(0, length);
      interim = head->status / 100 == 1;
      return *std::move(head);
    }
    if (link.in.size() > kHeadMax) {
      return tl::unexpected(Failure{gone("the head of the answer is larger than 256 KiB"), false});
    }
    const auto left = std::max(Millis(0), std::chrono::ceil<Millis>(end - Clock::now()));
    auto got = more(link, left);
    if (!got) {
      auto error = std::move(got).error();
      if (error.code == ErrorCode::timeout)
        error.message = where() + " did not answer within " + format_duration(timeout);
      return tl::unexpected(
          Failure{std::move(error), link.in.empty() && error.code == ErrorCode::unavailable});
    }
  }
}

Result<void> PooledClient::read_chunked(Link& link, Millis timeout, const Sink& sink) {
  detail::ChunkedDecoder decoder;
  std::string piece(kPiece, '\0');
  while (!decoder.done()) {
    if (link.in.empty()) MUSTER_CHECK(more(link, timeout));
    const auto step = decoder.decode(link.in, piece);
    if (!step) return tl::unexpected(gone(step.error().message));
    link.in.erase(0, step->consumed);
    if (step->produced > 0) MUSTER_CHECK(sink(std::string_view(piece).substr(0, step->produced)));
    if (step->consumed == 0 && step->produced == 0) {
      if (link.in.size() > kHeadMax) return tl::unexpected(gone("broken chunked body"));
      MUSTER_CHECK(more(link, timeout));
    }
  }
  return {};
}

Result<void> PooledClient::read_body(Link& link, const detail::ParsedResponse& head, Millis timeout,
                                     const Sink& sink) {
  if (head.chunked) return read_chunked(link, timeout, sink);
  auto left = head.content_length.value_or(std::numeric_limits<std::uint64_t>::max());
  const auto take = [&](std::string_view piece) {
    left -= piece.size();
    return sink(piece);
  };
  if (const auto have = static_cast<std::size_t>(std::min<std::uint64_t>(left, link.in.size())); have > 0) {
    MUSTER_CHECK(take(std::string_view(link.in).substr(0, have)));
    link.in.erase(0, have);
  }
  while (left > 0) {  // straight from the socket's buffer to the sink
    const auto got = receive_some(link, timeout, left);
    if (!got && !head.content_length && !cancelled_ && got.error().code == ErrorCode::unavailable) return {};
    if (!got) return tl::unexpected(got.error());
    MUSTER_CHECK(take(std::string_view(link.buffer).substr(0, *got)));
  }
  return {};
}

Step<ClientResponse> PooledClient::exchange(Link& link, const ClientRequest& request, const Sinks& sinks,
                                            bool& reusable) {
  reusable = false;
  const auto sent = send_request(link, request);
  if (!sent) return tl::unexpected(sent.error());
  detail::ParsedResponse head;
  for (bool interim = true; interim;) {
    auto read = read_head(link, request.timeout, interim);
    if (!read) return tl::unexpected(std::move(read).error());
    head = *std::move(read);
  }
  const bool good = head.status / 100 == 2;
  if (good && sinks.head) {
    if (auto seen = sinks.head(head.status, head.headers); !seen) {
      return tl::unexpected(Failure{std::move(seen).error(), false});
    }
  }
  ClientResponse response;
  response.status = head.status;
  const bool has_body = request.method != "HEAD" && head.status != 204 && head.status != 304;
  if (has_body) {
    const Sink collect = [&response](std::string_view piece) -> Result<void> {
      if (response.body.size() + piece.size() > kBodyMax) {
        return fail(ErrorCode::resource_exhausted, "the answer is larger than " + format_bytes(kBodyMax));
      }
      response.body += piece;
      return {};
    };
    auto read = read_body(link, head, request.timeout, sinks.body && good ? sinks.body : collect);
    if (!read) return tl::unexpected(Failure{std::move(read).error(), false});
  }
  const bool framed = head.chunked || head.content_length || !has_body;
  reusable = *sent && framed && head.keep_alive;
  response.headers = std::move(head.headers);
  return response;
}

Result<ClientResponse> PooledClient::send(const ClientRequest& request, const Sink& sink,
                                          const HeadSink& on_head) {
  for (bool fresh = false;;) {
    bool reused = false;
    MUSTER_TRY(auto link, checkout(request.timeout, fresh, reused));
    bool reusable = false;
    auto answer = exchange(*link, request, {sink, on_head}, reusable);
    give_back(std::move(link), answer && reusable);
    if (answer) return *std::move(answer);
    auto& failure = answer.error();
    if (cancelled_) return tl::unexpected(gone(""));
    const bool again = reused && !fresh && failure.before_answer && is_idempotent(request.method);
    if (!again) return tl::unexpected(std::move(failure.error));
    fresh = true;
  }
}

}  // namespace

std::unique_ptr<Client> Client::create(std::string host, std::uint16_t port, int connections_max) {
  return std::make_unique<PooledClient>(std::move(host), port, connections_max);
}

}  // namespace muster::net
