#include "net/detail/message_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "base/assert.h"
#include "base/text.h"

namespace muster::net::detail {
namespace {

namespace http = boost::beast::http;
namespace asio = boost::asio;
using boost::system::error_code;

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

template <typename Message>
Headers headers_of(const Message& message) {
  Headers headers;
  for (const auto& field : message) headers.add(view(field.name_string()), view(field.value()));
  return headers;
}

// Origin form, or the absolute form that proxies use; the rest ("*", authority) has no path.
Result<void> split_target(std::string_view target, RequestHead& head) {
  if (!target.empty() && target[0] != '/') {
    const auto scheme = target.find("://");
    if (scheme == std::string_view::npos || scheme > 8) {
      return fail(ErrorCode::invalid_argument, "the request target must begin with '/'");
    }
    const auto slash = target.find_first_of("/?", scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  const auto mark = target.find('?');
  head.path = target.substr(0, mark);
  if (head.path.empty()) head.path = "/";
  if (mark != std::string_view::npos) head.query = target.substr(mark + 1);
  return {};
}

int count_of(const Headers& headers, std::string_view name) {
  int count = 0;
  for (const auto& [key, value] : headers.all()) count += iequals(key, name) ? 1 : 0;
  return count;
}

}  // namespace

std::size_t find_head_end(std::string_view data, std::size_t& scanned) {
  const auto from = scanned < 3 ? 0 : scanned - 3;
  const auto at = data.find("\r\n\r\n", from);
  scanned = data.size();
  return at == std::string_view::npos ? 0 : at + 4;
}

Result<ParsedRequest> parse_request_head(std::string_view text) {
  http::request_parser<http::empty_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(text.size() + 1));
  parser.body_limit(boost::none);
  parser.eager(false);
  error_code error;
  parser.put(asio::buffer(text.data(), text.size()), error);
  if (!error && !parser.is_header_done()) error = http::error::partial_message;
  if (error) return fail(ErrorCode::invalid_argument, "not a valid HTTP/1.1 request: " + error.message());
  const auto& message = parser.get();
  ParsedRequest request;
  request.head.method = view(message.method_string());
  MUSTER_CHECK(split_target(view(message.target()), request.head));
  request.head.headers = headers_of(message);
  request.keep_alive = parser.keep_alive();
  request.http10 = message.version() == 10;
  request.chunked = parser.chunked();
  if (request.chunked) {
    request.head.content_length = std::nullopt;
  } else if (const auto length = parser.content_length()) {
    request.head.content_length = *length;
  }
  if (request.head.headers.has("Transfer-Encoding") &&
      (!iequals(trim(request.head.headers.get("Transfer-Encoding")), "chunked") ||
       count_of(request.head.headers, "Transfer-Encoding") != 1)) {
    return fail(ErrorCode::unsupported, "the only transfer coding is chunked");
  }
  if (request.chunked && request.http10) {
    return fail(ErrorCode::invalid_argument, "HTTP/1.0 has no chunked bodies");
  }
  const int hosts = count_of(request.head.headers, "Host");
  if (hosts > 1 || (hosts == 0 && !request.http10)) {
    return fail(ErrorCode::invalid_argument, "a request needs exactly one Host header");
  }
  const auto expect = trim(request.head.headers.get("Expect"));
  if (!expect.empty() && !iequals(expect, "100-continue")) {
    return fail(ErrorCode::unsupported, "the only expectation is 100-continue");
  }
  request.expect_continue = !expect.empty() && !request.http10;
  return request;
}

Result<ParsedResponse> parse_response_head(std::string_view text) {
  http::response_parser<http::empty_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(text.size() + 1));
  parser.body_limit(boost::none);
  parser.eager(false);
  error_code error;
  parser.put(asio::buffer(text.data(), text.size()), error);
  if (!error && !parser.is_header_done()) error = http::error::partial_message;
  if (error) return fail(ErrorCode::unavailable, "the answer is not valid HTTP/1.1: " + error.message());
  ParsedResponse response;
  response.status = static_cast<int>(parser.get().result_int());
  response.headers = headers_of(parser.get());
  // keep_alive() of the parser says no for bodies that end with the connection; so do we.
  response.keep_alive = parser.get().keep_alive();
  response.chunked = parser.chunked();
  if (const auto length = parser.content_length()) response.content_length = *length;
  return response;
}

// Beast decodes chunks only as part of a message: give it a head once.
struct ChunkedDecoder::Impl {
  http::response_parser<http::buffer_body> parser;
};

ChunkedDecoder::ChunkedDecoder() : impl_(std::make_unique<Impl>()) {
  constexpr std::string_view kHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  impl_->parser.body_limit(boost::none);
  impl_->parser.eager(false);
  error_code error;
  impl_->parser.put(asio::buffer(kHead.data(), kHead.size()), error);
  MUSTER_ASSERT(!error && impl_->parser.is_header_done());
  impl_->parser.eager(true);
}
ChunkedDecoder::~ChunkedDecoder() = default;

Result<ChunkedDecoder::Step> ChunkedDecoder::decode(std::string_view in, std::span<char> out) {
  Step step;
  auto& body = impl_->parser.get().body();
  body.data = out.data();
  body.size = out.size();
  body.more = true;
  error_code error;
  while (!impl_->parser.is_done() && step.consumed < in.size() && !error) {
    step.consumed +=
        impl_->parser.put(asio::buffer(in.data() + step.consumed, in.size() - step.consumed), error);
  }
  step.produced = out.size() - body.size;
  body.data = nullptr;
  body.size = 0;
  if (error && error != http::error::need_more && error != http::error::need_buffer) {
    return fail(ErrorCode::invalid_argument, "broken chunked body: " + error.message());
  }
  return step;
}

bool ChunkedDecoder::done() const { return impl_->parser.is_done(); }

}  // namespace muster::net::detail
