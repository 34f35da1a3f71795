// Sends the log spool to the control plane, in order, one batch in flight.
//
// The first lines leave at once; while a batch is on its way, new lines gather for the next. A short burst is
// free, then small batches are at least 25 ms apart, so that a chatty command does not cost a request a line.
//
// Threading: one thread of its own; the functions may be called from any. `done` is called from that thread,
// once, after close() of the spool and the acknowledgement of its last line, or on an error: cancelled
// (stale), timeout (away for too long), failed_precondition (refused), corrupt or io (the spool cannot be
// read).
#pragma once

#include <functional>
#include <thread>

#include "runner/report/link.h"
#include "runner/report/spool.h"

namespace muster::runner {

class LogShipper {
 public:
  using Done = std::function<void(Result<void>)>;
  // All references outlive the shipper.
  LogShipper(LogSpool& spool, ControlLink& link, Patience& patience, Done done);

 private:
  Result<void> ship(std::stop_token stop);
  Result<void> learn_base(std::stop_token stop);
  void space_out(std::stop_token stop);

  LogSpool& spool_;
  ControlLink& link_;
  Patience& patience_;
  Done done_;
  double allowance_;  // batches that may leave without a pause
  Millis last_sent_{0};
  std::jthread thread_;  // last: starts when all is there
};

}  // namespace muster::runner
