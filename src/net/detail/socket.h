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

// What is still to be sent of one message: head, then text or files.
class Outgoing {
 public:
  Outgoing() = default;
  explicit Outgoing(std::string head) : head_(std::move(head)) {}
  Outgoing(std::string head, std::string body) : head_(std::move(head)), body_(std::move(body)) {}
  Outgoing(std::string head, FileRange file) : head_(std::move(head)), file_(std::move(file)) {}
  Outgoing(std::string head, FileSequence files)
      : head_(std::move(head)), files_left_(files.length), next_file_(std::move(files.next)) {}

  enum class State { done, would_block, failed };
  // Sends until all is out, the socket is full, or about `bytes_max` have moved (then would_block).
  State pump(int socket, std::uint64_t bytes_max = 8 << 20);
  int error_number() const { return error_number_; }
  bool started() const { return head_at_ > 0; }

 private:
  State pump_text(int socket);
  State pump_file(int socket, std::uint64_t bytes_max);
  bool take_next_file();

  std::string head_;
  std::size_t head_at_ = 0;
  std::string body_;
  std::size_t body_at_ = 0;
  FileRange file_;
  std::uint64_t files_left_ = 0;  // of a sequence, beyond file_
  std::function<Result<FileRange>()> next_file_;
  int error_number_ = 0;
};

// Sends all of `data`, waiting at most `idle` without progress.
Result<void> send_all(int socket, std::string_view data, Millis idle);

}  // namespace muster::net::detail
