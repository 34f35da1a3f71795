// HTTP/1.1 heads and chunked bodies as text to values, by Boost.Beast's parser. No I/O, no threads. The only
// header of this folder whose .cc sees Beast.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "net/http.h"

namespace muster::net::detail {

// Length of the head that `data` begins with, its empty line included; 0 when it is not complete yet.
// `scanned` remembers how far earlier calls on the same, growing data have looked.
std::size_t find_head_end(std::string_view data, std::size_t& scanned);

struct ParsedRequest {
  RequestHead head;  // peer not set
  bool keep_alive = true;
  bool http10 = false;
  bool chunked = false;
  bool expect_continue = false;
};
// `head`: one complete head. invalid_argument: not HTTP or against its rules; unsupported: a transfer coding
// or expectation that we do not have.
Result<ParsedRequest> parse_request_head(std::string_view head);

struct ParsedResponse {
  int status = 0;
  Headers headers;
  bool keep_alive = true;
  bool chunked = false;
  std::optional<std::uint64_t> content_length;  // neither this nor chunked: the body ends with the connection
};
Result<ParsedResponse> parse_response_head(std::string_view head);

// Undoes `Transfer-Encoding: chunked`. Trailers are read and dropped.
class ChunkedDecoder {
 public:
  ChunkedDecoder();
  ~ChunkedDecoder();
  struct Step {
    std::size_t consumed = 0;
    std::size_t produced = 0;
  };
  // Decodes from `in` to `out` until either is used up or the body ends. consumed == produced == 0 with input
  // left: more input is needed first.
  Result<Step> decode(std::string_view in, std::span<char> out);
  bool done() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::net::detail
