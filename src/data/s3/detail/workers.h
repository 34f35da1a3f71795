// Tasks on a few threads, and a meter of what they moved.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>

#include "base/error.h"
#include "data/s3/transfer.h"

namespace muster::data::s3::detail {

// task(0) ... task(count - 1), begun in that order on at most `threads` threads, the caller's among them.
// After the first error no further task begins, and that error is answered.
Result<void> run_tasks(std::size_t count, int threads, const std::atomic<bool>* stop,
                       const std::function<Result<void>(std::size_t)>& task);

// Thread-safe.
class Meter {
 public:
  Meter(const TransferOptions& options, std::uint64_t files_total, std::uint64_t bytes_total);
  void add_bytes(std::uint64_t bytes);
  void add_file();
  void finish();  // the last call of the caller's function

 private:
  void tell(bool always);

  const std::function<void(const Progress&)> progress_;
  const std::uint64_t files_total_;
  const std::uint64_t bytes_total_;
  std::atomic<std::uint64_t> files_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::mutex mutex_;
  std::chrono::steady_clock::time_point told_;
};

}  // namespace muster::data::s3::detail
