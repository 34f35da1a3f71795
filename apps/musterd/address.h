// Where musterd listens: what --listen says, what was kept at first start, and what may be served in clear.
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

namespace muster::app {

struct Address {
  std::string host = "127.0.0.1";  // IPv6 without brackets
  std::uint16_t port = 0;          // 0: the first free one
  bool operator==(const Address&) const = default;
};

// ADDRESS, ADDRESS:PORT or [IPV6]:PORT, where ADDRESS is IPv4, or IPv6 without a port; names are refused.
// Does not check that it is an address of this machine.
Result<Address> parse_address(const std::string& text);

bool is_loopback(const std::string& host);

struct AddressChoice {
  std::string listen;               // of the command line; empty: not given
  std::optional<std::string> kept;  // URL that the data directory was served at
  int dialling = 0;                 // launches with a living runner, which dials `kept`
  bool insecure = false;            // --insecure
};
// The kept address, unless another one is asked for and nothing dials the old one any longer.
Result<Address> choose_address(const AddressChoice& choice);

}  // namespace muster::app
