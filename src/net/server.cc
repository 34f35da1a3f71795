#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <vector>

#include "net/detail/connection.h"
#include "net/detail/port_holder.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using detail::Connection;
using detail::Loop;
using tcp = asio::ip::tcp;

// Above connections_max, this many more are answered 503 instead of being dropped.
constexpr int kOverloadAnswers = 64;

class AsioServer final : public Server {
 public:
  AsioServer(const ServerOptions& options, Handler& handler) : shared_(options, handler) {
    const auto cores = std::max(1U, std::thread::hardware_concurrency());
    const auto count = std::clamp(cores / 4, 1U, 4U);
    for (unsigned i = 0; i < count; ++i) {
      loops_.push_back(std::make_unique<Loop>());
      loops_.back()->gate->context = &loops_.back()->context;
    }
  }
  ~AsioServer() override { stop(Millis(0)); }

  Result<void> listen();
  std::uint16_t port() const override { return port_; }
  void stop(Millis grace) override;

 private:
  void accept();
  void take(tcp::socket socket, Loop& loop);
  void end_loops();

  detail::Shared shared_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::unique_ptr<tcp::acceptor> acceptor_;  // on the first loop
  std::unique_ptr<asio::steady_timer> pause_;
  std::size_t next_loop_ = 0;
  std::uint16_t port_ = 0;
  bool stopped_ = false;
};

Result<void> AsioServer::listen() {
  const auto& options = shared_.options;
  const auto where = host_in_url(options.address) + ":" + std::to_string(options.port);
  error_code error;
  const auto address = asio::ip::make_address(options.address, error);
  if (error) {
    return fail(
        ErrorCode::invalid_argument,
        "\"" + options.address + "\" is not an IP address to listen on; use 127.0.0.1, 0.0.0.0 or ::1");
  }
  auto& context = loops_.front()->context;
  acceptor_ = std::make_unique<tcp::acceptor>(context);
  pause_ = std::make_unique<asio::steady_timer>(context);
  const tcp::endpoint endpoint(address, options.port);
  acceptor_->open(endpoint.protocol(), error);
  if (!error) acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_->bind(endpoint, error);
  if (!error) acceptor_->listen(1024, error);
  if (error == asio::error::address_in_use) {
    const auto holder = detail::holder_of_port(options.port);
    return fail(ErrorCode::already_exists, "cannot listen on " + where + ": it is taken by " +
                                               (holder.empty() ? "another program" : holder) +
                                               "; stop it or choose another port");
  }
  if (error == asio::error::access_denied) {
    return fail(ErrorCode::permission_denied,
                "cannot listen on " + where + ": not permitted (ports below 1024 need privilege)");
  }
  if (error) return fail(ErrorCode::io, "cannot listen on " + where + ": " + error.message());
  port_ = acceptor_->local_endpoint().port();
  accept();
  for (auto& loop : loops_) {
    work_.emplace_back(loop->context.get_executor());
    loop->thread = std::thread([&context = loop->context] { context.run(); });
  }
  return {};
}

void AsioServer::accept() {
  auto& loop = *loops_[next_loop_++ % loops_.size()];
  acceptor_->async_accept(loop.context, [this, &loop](error_code error, tcp::socket socket) {
    if (shared_.stopping || error == asio::error::operation_aborted) return;
    if (!error) {
      // The socket belongs to its loop's thread from here on.
      auto held = std::make_shared<tcp::socket>(std::move(socket));
      asio::dispatch(loop.context, [this, held, &loop] { take(std::move(*held), loop); });
      return accept();
    }
    // Out of descriptors or memory: what is open must end first.
    pause_->expires_after(Millis(50));
    pause_->async_wait([this](error_code cancelled) {
      if (!cancelled && !shared_.stopping) accept();
    });
  });
}

void AsioServer::take(tcp::socket socket, Loop& loop) {
  const int others = shared_.connections;
  if (shared_.stopping || others >= shared_.options.connections_max + kOverloadAnswers) return;
  auto connection = std::make_shared<Connection>(shared_, loop, std::move(socket));
  loop.connections.insert(connection);
  if (others >= shared_.options.connections_max) {
    connection->refuse_overload();
  } else {
    connection->start();
  }
}

void AsioServer::stop(Millis grace) {
  if (stopped_) return;
  stopped_ = true;
  shared_.stopping = true;
  for (auto& loop : loops_) {
    asio::post(loop->context, [this, &loop = *loop] {
      if (&loop == loops_.front().get() && acceptor_) {
        error_code ignored;
        acceptor_->close(ignored);
        pause_->cancel();
      }
      const auto connections = loop.connections;  // a copy: closing erases
      for (const auto& connection : connections) connection->begin_stop();
    });
  }
  const auto end = std::chrono::steady_clock::now() + grace;
  while (shared_.connections > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(Millis(2));
  }
  for (auto& loop : loops_) {
    asio::post(loop->context, [&loop = *loop] {
      const auto connections = loop.connections;
      for (const auto& connection : connections) connection->cut();
    });
  }
  end_loops();
}

void AsioServer::end_loops() {
  // Handlers still at work notice the cut sockets; loops run meanwhile, for they hand connections back.
  shared_.requests.stop();
  shared_.uploads.stop();
  shared_.pushes.stop();
  for (auto& loop : loops_) {
    const std::lock_guard lock(loop->gate->mutex);
    loop->gate->context = nullptr;
  }
  work_.clear();
  for (auto& loop : loops_) {
    loop->context.stop();
    if (loop->thread.joinable()) loop->thread.join();
  }
  for (auto& loop : loops_) loop->connections.clear();
  acceptor_.reset();
  pause_.reset();
  // The contexts go before the pools that their connections point to.
  loops_.clear();
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options, Handler& handler) {
  auto server = std::make_unique<AsioServer>(options, handler);
  MUSTER_CHECK(server->listen());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace muster::net
