// The head of an answer as text. Pure but for the Date header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "net/http.h"

namespace muster::net::detail {

std::string_view reason_phrase(int status);

struct HeadFacts {
  std::optional<std::uint64_t> content_length;  // nullopt: none is written
  bool chunked = false;
  bool keep_alive = true;
  bool http10 = false;
};
// Content-Length, Transfer-Encoding, Connection and Date are ours. Line breaks inside a value become spaces:
// a header cannot end the head early.
std::string response_head(int status, const Headers& headers, const HeadFacts& facts);

// 204, 304 and 1xx never have a body.
bool status_has_body(int status);

}  // namespace muster::net::detail
