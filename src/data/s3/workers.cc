#include "data/s3/detail/workers.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

namespace muster::data::s3::detail {

Result<void> run_tasks(std::size_t count, int threads, const std::atomic<bool>* stop,
                       const std::function<Result<void>(std::size_t)>& task) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<Error> first;
  const auto give_up = [&](Error error) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::move(error);
    failed = true;
  };
  const auto work = [&] {
    while (!failed) {
      const auto index = next++;
      if (index >= count) return;
      if (stop != nullptr && *stop) return give_up({ErrorCode::cancelled, "the transfer was stopped"});
      auto done = task(index);
      if (!done) return give_up(std::move(done).error());
    }
  };
  {
    std::vector<std::jthread> others;
    const auto wanted = std::min<std::size_t>(count, static_cast<std::size_t>(std::max(threads, 1)));
    for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(work);
    work();
  }
  if (first) return tl::unexpected(std::move(*first));
  return {};
}

Meter::Meter(const TransferOptions& options, std::uint64_t files_total, std::uint64_t bytes_total)
    : progress_(options.progress), files_total_(files_total), bytes_total_(bytes_total) {}

void Meter::add_bytes(std::uint64_t bytes) {
  bytes_ += bytes;
  tell(false);
}

void Meter::add_file() {
  ++files_;
  tell(false);
}

void Meter::finish() { tell(true); }

void Meter::tell(bool always) {
  if (!progress_) return;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (always) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!always && now - told_ < Millis(100)) return;
  told_ = now;
  progress_({bytes_, bytes_total_, files_, files_total_});
}

}  // namespace muster::data::s3::detail
