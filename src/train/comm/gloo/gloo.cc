#include "train/comm/gloo/gloo.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <chrono>

#include "train/tensor.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#pragma GCC diagnostic pop

namespace muster::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The first line of a c10 or gloo exception without its source position: "[../x.cc:34] Timed out ...".
std::string first_line(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) {
    if (const auto end = text.find("] "); end != std::string::npos) text = text.substr(end + 2);
  }
  return text;
}

class Store final : public StoreServer {
 public:
  explicit Store(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}
  std::uint16_t port() const override { return store_->getPort(); }

 private:
  const c10::intrusive_ptr<c10d::TCPStore> store_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, Millis timeout)
      : group_(std::move(group)),
        timeout_(timeout),
        sent_(static_cast<std::size_t>(group_->getSize())),
        received_(sent_.size()) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        const Operation&) override {
    MUSTER_CHECK(still_whole());
    std::vector<Pending> pending;
    std::string peer;  // of the message being posted: a connection may be known to be closed by then
    try {
      for (const Receive& receive : receives) {
        peer = "receive from rank " + std::to_string(receive.from) + ": ";
        std::vector<at::Tensor> tensor = {tensor_of(receive.data.data(), receive.data.size())};
        pending.push_back({group_->recv(tensor, receive.from, tag(received_, receive.from)), receive.from,
                           "receive from", receive.data.size()});
      }
      for (const Send& send : sends) {
        peer = "send to rank " + std::to_string(send.to) + ": ";
        std::vector<at::Tensor> tensor = {tensor_of(send.data.data(), send.data.size())};
        pending.push_back(
            {group_->send(tensor, send.to, tag(sent_, send.to)), send.to, "send to", send.data.size()});
      }
    } catch (const std::exception& error) {
      return broken({ErrorCode::unavailable, peer + first_line(error)});
    }
    const auto deadline = SteadyClock::now() + timeout_;
    for (const Pending& message : pending) MUSTER_CHECK(wait(message, deadline));
    return {};
  }

  void abort(std::string_view reason) override {
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_ = Error{ErrorCode::cancelled, "aborted: " + std::string(reason)};
  }

 private:
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;
    int peer = 0;
    const char* what = "";
    std::size_t bytes = 0;
  };

  // The k-th message between two ranks carries the number k, whatever operations it is part of: a rank may
  // send in one what its peer receives in two.
  static int tag(std::vector<std::uint32_t>& messages, int peer) {
    return static_cast<int>(messages[static_cast<std::size_t>(peer)]++ & 0x3fffffff);
  }

  // gloo only reads what is sent; c10d's signature has no const.
  static at::Tensor tensor_of(const std::byte* data, std::size_t bytes) {
    return at::from_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
  }

  Result<void> wait(const Pending& message, SteadyClock::time_point deadline) {
    const std::string what = std::string(message.what) + " rank " + std::to_string(message.peer) + " (" +
                             std::to_string(message.bytes) + " bytes): ";
    // Rounded up, so that gloo's time-out never comes before the deadline; 0 would mean gloo's default.
    const auto left = std::max(Millis(1), std::chrono::ceil<Millis>(deadline - SteadyClock::now()));
    try {
      if (message.work->wait(left)) return {};
      return broken({ErrorCode::cancelled, what + "aborted"});
    } catch (const std::exception& error) {
      if (SteadyClock::now() >= deadline) {
        return broken({ErrorCode::timeout, what + "no answer within " + format_duration(timeout_)});
      }
      return broken({ErrorCode::unavailable, what + first_line(error)});
    }
  }

  Result<void> still_whole() {
    const std::lock_guard lock(mutex_);
    if (failed_) return tl::unexpected(*failed_);
    return {};
  }

  tl::unexpected<Error> broken(Error error) {
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_ = std::move(error);
    return tl::unexpected(*failed_);
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const Millis timeout_;
  std::vector<std::uint32_t> sent_, received_;  // messages so far, to and from each rank
  std::mutex mutex_;                            // guards failed_ against abort() from another thread
  std::optional<Error> failed_;
};

struct Resolved {
  sockaddr_storage address{};
  socklen_t length = 0;
};

Result<Resolved> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    return fail(ErrorCode::not_found, "host name \"" + host + "\": " + gai_strerror(code));
  }
  Resolved resolved{.length = found->ai_addrlen};
  memcpy(&resolved.address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return resolved;
}

}  // namespace

Result<UniqueFd> listen_for_store(const std::string& host, std::uint16_t port) {
  MUSTER_TRY(Resolved resolved, resolve(host, port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("socket");
  const int one = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&resolved.address), resolved.length);
  if (bound != 0 && errno == EADDRNOTAVAIL) {  // behind a service address
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(port);
    bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any);
  }
  if (bound != 0 || listen(fd.get(), 1024) != 0) {
    return fail_errno("listen on " + host + ":" + std::to_string(port) + " for the ranks' store");
  }
  return fd;
}

Result<std::unique_ptr<StoreServer>> start_store(const std::string& host, UniqueFd listener) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return fail_errno("getsockname");
  c10d::TCPStoreOptions options;
  options.port = ntohs(address.sin_port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.get();
  options.useLibUV = false;  // its server does not take a descriptor
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    listener.release();  // the server has it now
    return std::make_unique<Store>(std::move(store));
  } catch (const std::exception& error) {
    return fail(ErrorCode::unavailable,
                "store on " + host + ":" + std::to_string(options.port) + ": " + first_line(error));
  }
}

Result<std::unique_ptr<Transport>> gloo_transport(const GlooOptions& options) {
  const std::string where = options.store_host + ":" + std::to_string(options.store_port);
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = options.store_port;
    store_options.waitWorkers = false;
    store_options.timeout = options.connect_timeout;
    store_options.useLibUV = false;
    auto store = c10::make_intrusive<c10d::TCPStore>(options.store_host, store_options);
    auto group_options = c10d::ProcessGroupGloo::Options::create(options.connect_timeout);
    group_options->threads = 1;  // sends and receives are done by the device's own thread
    group_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(options.prefix, std::move(store)), options.rank, options.size,
        group_options);
    group->setTimeout(options.timeout);
    return std::make_unique<GlooTransport>(std::move(group), options.timeout);
  } catch (const std::exception& error) {
    return fail(ErrorCode::unavailable,
                "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) +
                    " could not join the others through the store at " + where + " within " +
                    format_duration(options.connect_timeout) + ": " + first_line(error));
  }
}

Result<std::string> address_towards(const std::string& host, std::uint16_t port) {
  MUSTER_TRY(Resolved resolved, resolve(host, port));
  UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("socket");
  sockaddr_in own{};
  socklen_t length = sizeof own;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&resolved.address), resolved.length) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return fail_errno("find a way to " + host);
  }
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
  return std::string(text);
}

}  // namespace muster::train
