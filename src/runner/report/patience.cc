#include <condition_variable>

#include "runner/report/link.h"

namespace muster::runner {

Patience::Patience(Options options)
    : options_(options),
      heard_ms_(boot_time().count()),
      rng_(static_cast<std::uint64_t>(boot_time().count())) {}

void Patience::heard() { heard_ms_.store(boot_time().count()); }

bool Patience::pause(std::stop_token stop, Millis wait) {
  std::unique_lock lock(mutex_);
  const auto jittered = Millis{rng_.between(wait.count() / 2, wait.count())};
  std::condition_variable_any never;
  never.wait_for(lock, stop, jittered, [] { return false; });
  return !stop.stop_requested();
}

std::optional<Error> Patience::consider(const Error& error, int& refusals) {
  switch (error.code) {
    case ErrorCode::cancelled:
      return error;
    case ErrorCode::unavailable:
    case ErrorCode::timeout:
    case ErrorCode::resource_exhausted:
    case ErrorCode::internal:
      refusals = 0;
      break;
    default:
      heard();
      if (++refusals < options_.refusals_max) break;
      return Error{ErrorCode::failed_precondition, "the control plane refuses this launch: " + error.message};
  }
  const auto silent = boot_time() - Millis{heard_ms_.load()};
  if (silent < options_.give_up) return std::nullopt;
  return Error{ErrorCode::timeout, "nothing was heard of the control plane for " + format_duration(silent) +
                                       " (" + error.message + ")"};
}

}  // namespace muster::runner
