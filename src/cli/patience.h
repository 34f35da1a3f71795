// Patience with a service that is away: its restart must not end a command that only watches a job.
//
// One thread; blocks.
#pragma once

#include <optional>

#include "base/error.h"
#include "base/time.h"

namespace muster::cli {

struct Patience {
  Millis longest{300'000};  // that the service may be away in one go
  Millis pause{500};        // between two tries
};

// One time of being away: says once on standard error that it waits, and when it is over.
class Away {
 public:
  explicit Away(Patience patience) : patience_(patience) {}
  // After a failed call. True: it has waited, call again. False: waiting would not help, or was too long.
  bool wait(const Error& error);
  // After a call that was answered.
  void over() const;

 private:
  Patience patience_;
  std::optional<Millis> since_;  // boot time of the first failure
};

// Repeats `call` while nobody answers (unavailable); its last answer.
template <typename Call>
auto patiently(Patience patience, Call&& call) -> decltype(call()) {
  Away away(patience);
  for (;;) {
    auto answer = call();
    if (answer) {
      away.over();
      return answer;
    }
    if (!away.wait(answer.error())) return answer;
  }
}

}  // namespace muster::cli
