// How transfers meet trouble: what is repeated, several at a time, and whose fault the rest is. Thread-safe.
#pragma once

#include <algorithm>
#include <functional>
#include <stop_token>

#include "base/error.h"
#include "base/time.h"
#include "runner/core/core.h"

namespace muster::runner {

struct RetryOptions {
  Millis away_max{600'000};  // how long a store that refuses or resets connections may be away
  Millis first_wait{50};
  Millis last_wait{2'000};
};

// Waits, unless stop is requested first: then false.
bool sleep_unless(std::stop_token stop, Millis wait);

// Repeats `call` while the store is away (unavailable, timeout).
template <typename T>
Result<T> while_away(std::stop_token stop, const RetryOptions& options,
                     const std::function<Result<T>()>& call) {
  const auto begin = boot_time();
  for (auto wait = options.first_wait;; wait = std::min(wait * 2, options.last_wait)) {
    auto answer = call();
    if (answer || stop.stop_requested()) return answer;
    const auto code = answer.error().code;
    if (code != ErrorCode::unavailable && code != ErrorCode::timeout) return answer;
    if (boot_time() - begin + wait > options.away_max || !sleep_unless(stop, wait)) return answer;
  }
}

// Calls work(i) for i in [0, count), up to `threads` at once; the first error stops the rest and is answered.
Result<void> for_each(std::size_t count, int threads, std::stop_token stop,
                      const std::function<Result<void>(std::size_t, std::stop_token)>& work);

// Whose fault an error of a transfer is: the infrastructure's when the store was away or wrong, else the
// program's (it named the data, or filled the disk).
core::Failure failure_of(const Error& error);

}  // namespace muster::runner
