// Who listens on a TCP port of this machine, as far as /proc tells. For error messages. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace muster::net::detail {

// "nginx (pid 812)", or "" when it cannot be found out (another user's process, no /proc).
std::string holder_of_port(std::uint16_t port);

}  // namespace muster::net::detail
