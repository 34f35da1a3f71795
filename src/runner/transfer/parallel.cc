#include "runner/transfer/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace muster::runner {

bool sleep_unless(std::stop_token stop, Millis wait) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, wait, [] { return false; });
  return !stop.stop_requested();
}

Result<void> for_each(std::size_t count, int threads, std::stop_token stop,
                      const std::function<Result<void>(std::size_t, std::stop_token)>& work) {
  std::stop_source all;
  const std::stop_callback forward(stop, [&] { all.request_stop(); });
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::optional<Error> first;
  const auto run = [&] {
    for (auto i = next++; i < count && !all.stop_requested(); i = next++) {
      auto done = work(i, all.get_token());
      if (done) continue;
      const std::lock_guard lock(mutex);
      if (!first) first = done.error();
      all.request_stop();
    }
  };
  {
    std::vector<std::jthread> workers;
    const auto extra = std::min(count, static_cast<std::size_t>(threads));
    for (std::size_t i = 1; i < extra; ++i) workers.emplace_back(run);
    run();
  }
  if (first) return tl::unexpected(*std::move(first));
  if (stop.stop_requested()) return fail(ErrorCode::cancelled, "stopped");
  return {};
}

core::Failure failure_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::unavailable:
    case ErrorCode::timeout:
    case ErrorCode::resource_exhausted:
    case ErrorCode::internal:
    case ErrorCode::corrupt:
    case ErrorCode::unauthenticated:
      return {domain::Cause::infrastructure, error.message};
    default:
      return {domain::Cause::program, error.message};
  }
}

}  // namespace muster::runner
