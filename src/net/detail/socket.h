// Non-blocking sockets: one attempt each, and waiting with a bound. Shared by server and client.
//
// Nothing here owns the descriptor. Any thread, one at a time per descriptor and direction.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "base/time.h"
#include "net/http.h"

namespace muster::net::detail {

struct Attempt {
  enum class What { moved, would_block, end, failed };
  What what = What::moved;
  std::size_t bytes = 0;
  int error_number = 0;
};

Attempt receive(int socket, char* buffer, std::size_t size);
// Throws away up to `size` received bytes without copying them.
Attempt discard(int socket, std::size_t size);

enum class Wait { ready, timed_out, failed };
Wait wait_readable(int socket, Millis timeout);
Wait wait_writable(int socket, Millis timeout);
// True when the peer has closed or reset, or sent something (which is wrong between two exchanges).
bool is_stale(int socket);
bool peer_closed(int socket);

void set_no_delay(int socket);

// What is still to be sent of one message: head, then text or file.
class Outgoing {
 public:
  Outgoing() = default;
  Outgoing(std::string head, std::variant<std::string, FileRange> body);

  enum class State { done, would_block, failed };
  // Sends until all is out, the socket is full, or about `bytes_max` have moved (then would_block).
  State pump(int socket, std::uint64_t bytes_max = 8 << 20);
  int error_number() const { return error_number_; }
  bool started() const { return head_at_ > 0; }

 private:
  State pump_text(int socket);
  State pump_file(int socket, std::uint64_t bytes_max);

  std::string head_;
  std::size_t head_at_ = 0;
  std::string body_;
  std::size_t body_at_ = 0;
  FileRange file_;
  int error_number_ = 0;
};

// Sends all of `data`, waiting at most `idle` without progress.
Result<void> send_all(int socket, std::string_view data, Millis idle);

}  // namespace muster::net::detail
