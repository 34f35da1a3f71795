#include "net/http.h"

#include <algorithm>

#include "base/text.h"

namespace muster::net {

void Headers::set(std::string_view name, std::string_view value) {
  const auto same = [&](const auto& header) { return iequals(header.first, name); };
  const auto found = std::find_if(all_.begin(), all_.end(), same);
  if (found == all_.end()) {
    add(name, value);
    return;
  }
  found->second = std::string(value);
  all_.erase(std::remove_if(found + 1, all_.end(), same), all_.end());
}

void Headers::add(std::string_view name, std::string_view value) {
  all_.emplace_back(std::string(name), std::string(value));
}

std::string_view Headers::get(std::string_view name) const {
  for (const auto& [key, value] : all_) {
    if (iequals(key, name)) return value;
  }
  return {};
}

bool Headers::has(std::string_view name) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& header) { return iequals(header.first, name); });
}

std::string host_in_url(std::string_view host) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return v6 ? "[" + std::string(host) + "]" : std::string(host);
}

Result<Url> parse_url(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::invalid_argument, "\"" + std::string(text.substr(0, 200)) +
                                                 "\" is not a usable URL: " + std::string(why) +
                                                 "; expected http://HOST[:PORT][/PATH]");
  };
  Url url;
  const auto colon = text.find("://");
  if (colon == std::string_view::npos) return bad("it has no scheme");
  url.scheme = to_lower(text.substr(0, colon));
  if (url.scheme == "https")
    return fail(ErrorCode::unsupported,
                "https endpoints are not supported yet: " + std::string(text.substr(0, 200)));
  if (url.scheme != "http") return bad("its scheme is not http");
  auto rest = text.substr(colon + 3);
  const auto slash = rest.find('/');
  if (slash != std::string_view::npos) url.path = rest.substr(slash);
  if (url.path.find_first_of("?# \r\n") != std::string::npos)
    return bad("its path has a query, fragment or blank");
  rest = rest.substr(0, slash);
  std::string_view port;
  if (rest.starts_with('[')) {  // IPv6
    const auto end = rest.find(']');
    if (end == std::string_view::npos) return bad("'[' is not closed");
    url.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (!rest.empty() && rest[0] != ':') return bad("there is text after ']'");
    if (!rest.empty()) port = rest.substr(1);
    if (!rest.empty() && port.empty()) return bad("its port is empty");
  } else {
    const auto mark = rest.find(':');
    url.host = rest.substr(0, mark);
    if (mark != std::string_view::npos) {
      port = rest.substr(mark + 1);
      if (port.empty()) return bad("its port is empty");
    }
  }
  if (url.host.empty() || url.host.find_first_of("@?#% \t\r\n") != std::string::npos) return bad("its host");
  if (!port.empty()) {
    const auto number = parse_int(port);
    if (!number || *number < 1 || *number > 65535) return bad("its port must be 1 to 65535");
    url.port = static_cast<std::uint16_t>(*number);
  }
  return url;
}

}  // namespace muster::net
