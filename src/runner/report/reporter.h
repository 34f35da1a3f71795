// Sends numbered reports in order, and follows the desired state.
//
// Threading: each class has one thread of its own; functions may be called from any. The callbacks are called
// from that thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runner/report/link.h"

namespace muster::runner {

// Reports are written to `file` before they are sent, so that a drain can send what a dead runner could not.
class Reporter {
 public:
  // `lost`: no further report will be sent; cancelled (stale), timeout, failed_precondition.
  using Lost = std::function<void(Error)>;
  Reporter(std::string file, ControlLink& link, Patience& patience, Lost lost);

  void send(domain::RankReport report);
  // Calls `delivered` once everything sent so far has been acknowledged.
  void when_delivered(std::function<void()> delivered);

 private:
  void run(std::stop_token stop);
  Result<void> send_next(std::stop_token stop, const domain::RankReport& report);

  const std::string file_;
  ControlLink& link_;
  Patience& patience_;
  Lost lost_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<domain::RankReport> reports_;  // all of this launch: a dozen at most
  std::size_t next_ = 0;                     // first one not acknowledged
  std::function<void()> delivered_;
  std::jthread thread_;
};

// The reports in `file`, oldest first; a missing file has none and a torn last line is left out.
// corrupt: another line is no report.
Result<std::vector<domain::RankReport>> read_reports(const std::string& file);

class Poller {
 public:
  using Desire = std::function<void(domain::Desired)>;
  Poller(ControlLink& link, Patience& patience, Desire desire, Reporter::Lost lost);

 private:
  void run(std::stop_token stop);
  ControlLink& link_;
  Patience& patience_;
  Desire desire_;
  Reporter::Lost lost_;
  std::jthread thread_;
};

}  // namespace muster::runner
