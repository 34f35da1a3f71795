#include "net/detail/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace muster::net::detail {
namespace {

Attempt attempt(ssize_t count) {
  if (count > 0) return {Attempt::What::moved, static_cast<std::size_t>(count), 0};
  if (count == 0) return {Attempt::What::end, 0, 0};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {Attempt::What::would_block, 0, 0};
  return {Attempt::What::failed, 0, errno};
}

Wait wait_for(int socket, short events, Millis timeout) {
  pollfd entry{socket, events, 0};
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<Millis>(end - std::chrono::steady_clock::now()).count();
    const auto bounded = std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max());
    const int count = ::poll(&entry, 1, static_cast<int>(bounded));
    if (count > 0) return Wait::ready;
    if (count == 0) return Wait::timed_out;
    if (errno != EINTR) return Wait::failed;
  }
}

}  // namespace

Attempt receive(int socket, char* buffer, std::size_t size) {
  return attempt(::recv(socket, buffer, size, 0));
}

Attempt discard(int socket, std::size_t size) { return attempt(::recv(socket, nullptr, size, MSG_TRUNC)); }

Wait wait_readable(int socket, Millis timeout) { return wait_for(socket, POLLIN, timeout); }
Wait wait_writable(int socket, Millis timeout) { return wait_for(socket, POLLOUT, timeout); }

bool is_stale(int socket) {
  pollfd entry{socket, POLLIN | POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) != 0;
}

bool peer_closed(int socket) {
  pollfd entry{socket, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) != 0;
}

void set_no_delay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int idle_seconds = 30;
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
}

Outgoing::State Outgoing::pump(int socket, std::uint64_t bytes_max) {
  const auto state = pump_text(socket);
  return state == State::done ? pump_file(socket, bytes_max) : state;
}

Outgoing::State Outgoing::pump_text(int socket) {
  while (head_at_ < head_.size() || body_at_ < body_.size()) {
    iovec parts[2] = {{head_.data() + head_at_, head_.size() - head_at_},
                      {body_.data() + body_at_, body_.size() - body_at_}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const int flags = MSG_NOSIGNAL | (file_.length > 0 || files_left_ > 0 ? MSG_MORE : 0);
    const auto sent = attempt(::sendmsg(socket, &message, flags));
    if (sent.what == Attempt::What::would_block) return State::would_block;
    if (sent.what != Attempt::What::moved) {
      error_number_ = sent.error_number;
      return State::failed;
    }
    const auto of_head = std::min(sent.bytes, head_.size() - head_at_);
    head_at_ += of_head;
    body_at_ += sent.bytes - of_head;
  }
  return State::done;
}

Outgoing::State Outgoing::pump_file(int socket, std::uint64_t bytes_max) {
  for (std::uint64_t moved = 0; file_.length > 0 || files_left_ > 0;) {
    if (file_.length == 0 && !take_next_file()) return State::failed;
    if (moved >= bytes_max) return State::would_block;
    auto offset = static_cast<off_t>(file_.offset);
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(file_.length, 1 << 20));
    const auto sent = attempt(::sendfile(socket, file_.file->get(), &offset, size));
    if (sent.what == Attempt::What::would_block) return State::would_block;
    if (sent.what != Attempt::What::moved) {  // `end`: the file is shorter than was promised
      error_number_ = sent.what == Attempt::What::end ? EIO : sent.error_number;
      return State::failed;
    }
    file_.offset += sent.bytes;
    file_.length -= sent.bytes;
    moved += sent.bytes;
  }
  return State::done;
}

bool Outgoing::take_next_file() {
  auto next = next_file_();
  if (!next || next->length == 0 || next->length > files_left_) {
    error_number_ = EIO;
    return false;
  }
  file_ = *std::move(next);
  files_left_ -= file_.length;
  return true;
}

Result<void> send_all(int socket, std::string_view data, Millis idle) {
  while (!data.empty()) {
    const auto sent = attempt(::send(socket, data.data(), data.size(), MSG_NOSIGNAL));
    if (sent.what == Attempt::What::moved) {
      data.remove_prefix(sent.bytes);
      continue;
    }
    if (sent.what != Attempt::What::would_block)
      return fail(ErrorCode::unavailable, "the other side went away");
    const auto waited = wait_writable(socket, idle);
    if (waited == Wait::timed_out) {
      return fail(ErrorCode::timeout, "the other side took nothing for " + format_duration(idle));
    }
    if (waited == Wait::failed) return fail(ErrorCode::unavailable, "the connection is gone");
  }
  return {};
}

}  // namespace muster::net::detail
