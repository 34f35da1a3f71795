// Transfers several at a time, and whose fault their errors are. Thread-safe.
#pragma once

#include <functional>
#include <stop_token>

#include "base/error.h"
#include "base/time.h"
#include "runner/core/core.h"

namespace muster::runner {

// Waits, unless stop is requested first: then false.
bool sleep_unless(std::stop_token stop, Millis wait);

// Calls work(i) for i in [0, count), up to `threads` at once; the first error stops the rest and is answered.
Result<void> for_each(std::size_t count, int threads, std::stop_token stop,
                      const std::function<Result<void>(std::size_t, std::stop_token)>& work);

// Whose fault an error of a transfer is: the infrastructure's when the store was away or wrong, else the
// program's (it named the data, or filled the disk).
core::Failure failure_of(const Error& error);

}  // namespace muster::runner
