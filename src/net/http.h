// HTTP/1.1 server and client. The only folder that sees Boost.Beast; no Beast type shows.
//
// Server: the head is read first and handed to Handler::route(), which decides the body limit and how the
// body is taken; only then is `100 Continue` sent or the body read. Handlers are plain blocking functions on
// a bounded pool. The one asynchronous kind is the long poll (Route::handle_later).
//
// Threading: route() and handlers are called from pool threads, many at once. A Response may be sent from
// any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/notes.h"
#include "base/time.h"

namespace muster::net {

// Ordered, names compared without case.
class Headers {
 public:
  void set(std::string_view name, std::string_view value);  // replaces
  void add(std::string_view name, std::string_view value);
  std::string_view get(std::string_view name) const;  // "" when absent
  bool has(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

struct RequestHead {
  std::string method;
  std::string path;   // raw: percent escapes as received, never normalised
  std::string query;  // raw, without '?'
  Headers headers;
  std::string peer;  // address:port of the other side
  // From Content-Length; nullopt for a chunked body. 0 when there is no body.
  std::optional<std::uint64_t> content_length = 0;
};

// The body of a streamed request, pulled by its handler on the handler's thread.
class BodyReader {
 public:
  virtual ~BodyReader() = default;
  // Up to buffer.size() bytes; 0 at the end. unavailable when the peer went away in the middle, timeout when
  // it was idle too long, resource_exhausted past the route's limit.
  virtual Result<std::size_t> read(std::span<char> buffer) = 0;
};

struct Request {
  RequestHead head;
  std::string body;              // the whole body, unless the route streams
  BodyReader* reader = nullptr;  // set when the route streams; valid during the handler
};

// `length` bytes of an open file from `offset`, sent with sendfile where the transport allows.
struct FileRange {
  std::shared_ptr<const UniqueFd> file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// A body made of several pieces of files, opened one after another while it is sent (an object of many
// parts).
struct FileSequence {
  std::uint64_t length = 0;  // Content-Length: the sum of all pieces
  // Called until `length` bytes have been given; not empty. An error closes the connection.
  std::function<Result<FileRange>()> next;
};

// A body of unknown length, pushed piece by piece in chunked encoding (for example `logs -f`).
class BodyWriter {
 public:
  virtual ~BodyWriter() = default;
  // unavailable when the peer is gone or the server stops, timeout when it takes nothing for 30 s.
  virtual Result<void> write(std::string_view piece) = 0;
  // False once a write cannot succeed any more. For a push that waits for news without writing: look at it
  // at least every few seconds, so that a stopped server or a gone client frees the thread.
  virtual bool open() const = 0;
};
using PushBody = std::function<Result<void>(BodyWriter&)>;

struct Response {
  int status = 200;
  Headers headers;
  std::variant<std::string, FileRange, PushBody, FileSequence> body;
  // For HEAD: Content-Length that a GET would have; no body is sent for HEAD, 204 and 304 in any case.
  std::optional<std::uint64_t> content_length_of_head;
};

// Any thread, called once: later calls are ignored. Dropped without a call: the client is answered 503. After
// the server has stopped a call does nothing.
using Responder = std::function<void(Response)>;

struct Route {
  std::uint64_t body_max = 4ULL << 20;  // bytes; a larger body is answered 413 before it is read
  bool streaming = false;               // true: Request::reader instead of Request::body
  // Exactly one of the two. `handle_later` returns at once and answers through the responder (long polls).
  std::function<Response(Request&)> handle;
  std::function<void(Request, Responder)> handle_later;
  // Shapes the 413 and 400 answers of the server itself for this protocol; default: plain text.
  std::function<Response(int status, std::string_view message)> refuse;
};

class Handler {
 public:
  virtual ~Handler() = default;
  // Called when the head is complete, before any byte of the body. A Response refuses the request: the
  // connection is closed after it unless the body is small enough to skip.
  virtual std::variant<Route, Response> route(const RequestHead& head) = 0;
};

struct ServerOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;      // 0: any free port
  int handler_threads = 32;    // and as many more for streamed bodies, twice as many for pushed ones
  int connections_max = 1024;  // more are answered 503 and closed
  Millis head_timeout{10'000};
  Millis body_idle_timeout{30'000};
  Millis keep_alive_timeout{60'000};
  std::uint64_t head_bytes_max = 64 << 10;  // 431 above
  Note note = {};                           // what a client sees as a 500: any thread; may be empty
};

class Server {
 public:
  virtual ~Server() = default;  // stops
  virtual std::uint16_t port() const = 0;
  // Accepts no more, lets running handlers end within `grace`, then closes everything.
  virtual void stop(Millis grace) = 0;
  // already_exists when the address is taken, with the holder's name where it can be found.
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options, Handler& handler);
};

// ---- client ----

struct Url {
  std::string scheme;  // "http"
  std::string host;
  std::uint16_t port = 80;
  std::string path;  // raw, begins with '/' or empty
};
Result<Url> parse_url(std::string_view text);
// A host as it stands in URLs and in the Host header: IPv6 addresses in brackets.
std::string host_in_url(std::string_view host);

struct ClientRequest {
  std::string method = "GET";
  std::string target = "/";  // raw path?query
  Headers headers;           // Host, Content-Length and Connection are added
  std::variant<std::string, FileRange> body;
  // The longest wait without progress: to connect (at most 10 s), to send a piece of the body, for the head
  // of the answer, for a piece of its body.
  Millis timeout{30'000};
  bool expect_continue = false;
};

struct ClientResponse {
  int status = 0;
  Headers headers;
  std::string body;  // empty when a sink took it
};

// A pool of keep-alive connections to one host and port. Thread-safe: each send() uses its own connection.
// A request that fails on a reused connection before any byte of the answer is sent once more on a fresh
// one if its method is idempotent.
class Client {
 public:
  virtual ~Client() = default;
  using Sink = std::function<Result<void>(std::string_view piece)>;
  using HeadSink = std::function<Result<void>(int status, const Headers& headers)>;
  // unavailable: refused, reset or closed early; timeout. Statuses of 400 and above are not errors here.
  // Given a sink, a 2xx body is passed to it piece by piece (the whole Content-Length, or an error).
  // Without one, a body of more than 64 MiB is an error. `on_head` sees the head of a 2xx answer before its
  // body; its error ends the exchange.
  virtual Result<ClientResponse> send(const ClientRequest& request, const Sink& sink = {},
                                      const HeadSink& on_head = {}) = 0;
  // Ends every send() in flight, and every later one, with `cancelled`. For shutting down.
  virtual void cancel() = 0;
  static std::unique_ptr<Client> create(std::string host, std::uint16_t port, int connections_max = 16);
};

}  // namespace muster::net
