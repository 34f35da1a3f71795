// The canonical forms that signatures are made over. Pure; used by sigv4.cc only, shown for its tests.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/sigv4/sigv4.h"

namespace muster::wire::sigv4::detail {

// A query string taken apart: decoded pairs in the order sent. '+' is a space, as it is to the services that
// read the query: were it signed as %2B, a signature of "a%2Bb" would be good for "a b".
class Query {
 public:
  static std::optional<Query> parse(std::string_view raw);  // nullopt on a broken escape
  // The first value of that exact name.
  std::optional<std::string_view> get(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

// The first header of that name, compared without case.
std::optional<std::string_view> header(const RequestView& request, std::string_view name);

// Decoded once, encoded once.
std::string canonical_path_s3(std::string_view raw);
// Dot segments and repeated slashes removed (RFC 3986, 5.2.4), then what was sent is encoded once more.
std::string canonical_path(std::string_view raw);
// Sorted by encoded name, then value; parameters called `leave_out` are left out.
std::string canonical_query(std::string_view raw, std::string_view leave_out);
// "name:value\n" of each; values trimmed, inner runs of spaces one space, repeated headers joined by ','.
std::string canonical_headers(const RequestView& request, const std::vector<std::string>& names);

// "Authenticating requests (AWS Signature Version 2)", query form.
std::string string_to_sign_v2(const RequestView& request);

}  // namespace muster::wire::sigv4::detail
