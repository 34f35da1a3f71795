// Virtual time: what happens next, in one order. Events of one instant run in the order of their making.
//
// The monotonic clock only moves here; the wall clock is it plus an offset that a test may step. One thread,
// that of its world.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "base/time.h"

namespace muster::sim {

class Timeline final : public Clock {
 public:
  Time now() const override { return Time{kStart + elapsed_.count() + wall_offset_.count()}; }
  Millis elapsed() const { return elapsed_; }
  void step_wall_clock(Millis by) { wall_offset_ += by; }

  void after(Millis delay, std::function<void()> run) {
    events_.emplace(std::pair(elapsed_ + delay, next_++), std::move(run));
  }
  bool empty() const { return events_.empty(); }
  Millis next_at() const { return events_.begin()->first.first; }

  // Runs the next event.
  void step() {
    auto event = events_.extract(events_.begin());
    elapsed_ = event.key().first;
    event.mapped()();
  }
  // Runs everything up to and at `until`.
  void run_until(Millis until) {
    while (!events_.empty() && next_at() <= until) step();
    elapsed_ = std::max(elapsed_, until);
  }

 private:
  static constexpr std::int64_t kStart = 1'700'000'000'000;
  Millis elapsed_{0};
  Millis wall_offset_{0};
  std::uint64_t next_ = 0;
  std::map<std::pair<Millis, std::uint64_t>, std::function<void()>> events_;
};

}  // namespace muster::sim
