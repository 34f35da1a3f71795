#include "address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "net/http.h"

namespace muster::app {
namespace {

tl::unexpected<Error> bad(const std::string& text, const std::string& why) {
  return fail(ErrorCode::invalid_argument,
              "--listen " + text + ": " + why + "; give ADDRESS, ADDRESS:PORT or [IPV6]:PORT");
}

// In the one way in which it is written here; nullopt: not an IPv6 address.
std::optional<std::string> ipv6(const std::string& text) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, text.c_str(), &address) != 1) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> out{};
  return ::inet_ntop(AF_INET6, &address, out.data(), out.size());
}

}  // namespace

Result<Address> parse_address(const std::string& text) {
  Address out;
  std::optional<std::string> port;
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string::npos) return bad(text, "'[' is not closed");
    out.host = text.substr(1, end - 1);
    if (end + 1 < text.size() && text[end + 1] != ':') return bad(text, "there is text after ']'");
    if (end + 1 < text.size()) port = text.substr(end + 2);
  } else if (const auto colons = std::count(text.begin(), text.end(), ':'); colons == 1) {
    const auto colon = text.find(':');
    out.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  } else {
    out.host = text;
  }
  if (out.host.empty()) return bad(text, "the address is missing");
  in_addr v4{};
  if (text.starts_with('[') || out.host.find(':') != std::string::npos) {
    const auto address = ipv6(out.host);
    if (!address) return bad(text, "\"" + out.host + "\" is not an IPv6 address");
    out.host = *address;
  } else if (::inet_pton(AF_INET, out.host.c_str(), &v4) != 1) {
    return bad(text, "\"" + out.host + "\" is not an IP address; use 127.0.0.1");
  }
  if (port) {
    const auto number = parse_int(*port);
    if (!number || *number < 0 || *number > 65535) return bad(text, "the port must be from 0 to 65535");
    out.port = static_cast<std::uint16_t>(*number);
  }
  return out;
}

bool is_loopback(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return ipv6(host) == "::1";
}

Result<Address> choose_address(const AddressChoice& choice) {
  Address chosen;
  if (!choice.listen.empty()) {
    MUSTER_TRY(chosen, parse_address(choice.listen));
  }
  if (choice.kept) {
    MUSTER_TRY(const auto url, net::parse_url(*choice.kept));
    const bool same =
        choice.listen.empty() || (chosen.host == url.host && (chosen.port == 0 || chosen.port == url.port));
    if (same) {
      chosen = {url.host, url.port};
    } else if (choice.dialling > 0) {
      return fail(ErrorCode::failed_precondition,
                  "--listen " + choice.listen + ": " + std::to_string(choice.dialling) +
                      (choice.dialling == 1 ? " node runs a job that dials " : " nodes run jobs that dial ") +
                      *choice.kept +
                      "; start without --listen, or end the jobs first with `muster down --stop-jobs`");
    }
  }
  if (!is_loopback(chosen.host) && !choice.insecure) {
    return fail(ErrorCode::invalid_argument,
                "--listen " + chosen.host +
                    " is reachable from other machines and this version has no TLS: "
                    "secrets would travel in clear; listen on 127.0.0.1, or say --insecure");
  }
  return chosen;
}

}  // namespace muster::app
