#include "net/detail/response_head.h"

#include "base/text.h"
#include "base/time.h"

namespace muster::net::detail {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 303:
      return "See Other";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 411:
      return "Length Required";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Content Too Large";
    case 416:
      return "Range Not Satisfiable";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 507:
      return "Insufficient Storage";
    default:
      return "Status";
  }
}

bool status_has_body(int status) { return status >= 200 && status != 204 && status != 304; }

namespace {
void add_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  const auto from = out.size();
  out += value;
  for (auto i = from; i < out.size(); ++i) {
    if (out[i] == '\r' || out[i] == '\n' || out[i] == '\0') out[i] = ' ';
  }
  out += "\r\n";
}

bool is_ours(std::string_view name) {
  return iequals(name, "content-length") || iequals(name, "transfer-encoding") || iequals(name, "connection");
}
}  // namespace

std::string response_head(int status, const Headers& headers, const HeadFacts& facts) {
  std::string out;
  out.reserve(256);
  out += "HTTP/1.1 " + std::to_string(status) + " ";
  out += reason_phrase(status);
  out += "\r\n";
  for (const auto& [name, value] : headers.all()) {
    if (!is_ours(name)) add_header(out, name, value);
  }
  if (!headers.has("Date")) add_header(out, "Date", format_http_date(SystemClock().now()));
  if (facts.chunked) {
    add_header(out, "Transfer-Encoding", "chunked");
  } else if (facts.content_length) {
    add_header(out, "Content-Length", std::to_string(*facts.content_length));
  }
  if (!facts.keep_alive) {
    add_header(out, "Connection", "close");
  } else if (facts.http10) {
    add_header(out, "Connection", "keep-alive");
  }
  out += "\r\n";
  return out;
}

}  // namespace muster::net::detail
