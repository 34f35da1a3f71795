// The runner's end of the runner protocol, and how long it keeps trying. docs/formats/runner-protocol.md.
//
// Threading: all functions may be called by several threads at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "base/time.h"
#include "domain/report.h"
#include "wire/runner/messages.h"

namespace muster::runner {

// One exchange each. Errors: cancelled is 410, the launch is stale; unavailable, timeout, resource_exhausted
// and internal mean that the control plane is away, busy or in trouble; anything else is a refusal.
class ControlLink {
 public:
  virtual ~ControlLink() = default;
  virtual Result<domain::ReportAnswer> report(const domain::RankReport& report) = 0;
  virtual Result<domain::Desired> desired(std::uint64_t after) = 0;     // blocks up to 25 s
  virtual Result<std::uint64_t> logs(const wire::LogBatch& batch) = 0;  // the stream's next sequence
  virtual Result<std::string> credentials() = 0;                        // JSON
  virtual void cancel() = 0;  // ends every exchange in flight, for shutting down
};

// Over HTTP. endpoint_url: "http://host:port" of musterd.
Result<std::unique_ptr<ControlLink>> connect(const std::string& endpoint_url, const domain::LaunchId& launch,
                                             const std::string& token);

// Repeats calls until they are answered: waits of 20 ms growing to 1 s, with jitter, until nothing at all has
// been heard of the control plane for `give_up`. Shared by all threads of a runner.
class Patience {
 public:
  struct Options {
    Millis give_up{24LL * 3'600'000};
    Millis first_wait{20};
    Millis last_wait{1'000};
    int refusals_max = 20;  // of one call in a row; then it is given up
  };
  Patience() : Patience(Options{}) {}
  explicit Patience(Options options);

  // Errors: cancelled (stale), timeout (away for too long), failed_precondition (refused for good, with what
  // was answered), aborted by stop: unavailable.
  template <typename T>
  Result<T> repeat(std::stop_token stop, const std::function<Result<T>()>& call) {
    auto wait = options_.first_wait;
    int refusals = 0;
    for (;;) {
      auto answer = call();
      if (answer) {
        heard();
        return answer;
      }
      auto end = consider(answer.error(), refusals);
      if (end) return tl::unexpected(*std::move(end));
      if (!pause(stop, wait))
        return fail(ErrorCode::unavailable, "stopped while waiting for the control plane");
      wait = std::min(wait * 2, options_.last_wait);
    }
  }

  // false: stop was requested.
  bool pause(std::stop_token stop, Millis wait);
  void heard();

 private:
  std::optional<Error> consider(const Error& error, int& refusals);
  const Options options_;
  std::atomic<std::int64_t> heard_ms_;
  std::mutex mutex_;
  Rng rng_;
};

}  // namespace muster::runner
