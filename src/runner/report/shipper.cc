#include "runner/report/shipper.h"

#include <algorithm>

namespace muster::runner {
namespace {
constexpr double kBurst = 20;             // batches
constexpr Millis kSpacing{25};            // between small batches after a burst
constexpr std::size_t kLargeBatch = 200;  // lines: worth a request at any time
}  // namespace

LogShipper::LogShipper(LogSpool& spool, ControlLink& link, Patience& patience, Done done)
    : spool_(spool),
      link_(link),
      patience_(patience),
      done_(std::move(done)),
      allowance_(kBurst),
      thread_([this](std::stop_token stop) {
        auto result = ship(stop);
        if (!stop.stop_requested()) done_(std::move(result));
      }) {}

// A log stream may hold lines of an earlier incarnation of this rank. An empty batch tells where it ends; it
// also opens the connection before the first line is there.
Result<void> LogShipper::learn_base(std::stop_token stop) {
  if (spool_.base()) return {};
  MUSTER_TRY(const auto next,
             patience_.repeat<std::uint64_t>(stop, [&] { return link_.logs(wire::LogBatch{}); }));
  spool_.set_base(next);
  return {};
}

void LogShipper::space_out(std::stop_token stop) {
  const auto now = boot_time();
  const auto passed = static_cast<double>((now - last_sent_).count()) / static_cast<double>(kSpacing.count());
  allowance_ = std::min(kBurst, allowance_ + passed);
  if (allowance_ < 1 && spool_.unread() < kLargeBatch && !spool_.closed()) {
    patience_.pause(stop, kSpacing);
    allowance_ += 1;
  }
  allowance_ = std::max(0.0, allowance_ - 1);
  last_sent_ = boot_time();
}

Result<void> LogShipper::ship(std::stop_token stop) {
  MUSTER_CHECK(learn_base(stop));
  while (spool_.wait(stop)) {
    space_out(stop);
    // Before a line is sent, or else as soon as the disk, which other jobs fill as well, has room for it.
    [[maybe_unused]] const auto kept = spool_.keep_base();
    MUSTER_TRY(auto batch, spool_.next_batch());
    const auto next_local = batch.first_sequence + batch.lines.size();
    batch.first_sequence += *spool_.base();
    MUSTER_TRY(const auto next, patience_.repeat<std::uint64_t>(stop, [&] { return link_.logs(batch); }));
    if (next < *spool_.base() + next_local) {
      return fail(ErrorCode::corrupt, "the log store has lost lines that it had acknowledged: it ends at " +
                                          std::to_string(next));
    }
    spool_.acknowledge(next_local);
  }
  return {};
}

}  // namespace muster::runner
