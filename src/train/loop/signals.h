// What the ranks of a run tell each other besides numbers. Pure; any thread.
#pragma once

#include <array>

namespace muster::train {

struct Signals {            // of one rank, or of all together
  bool stop = false;        // asked to stop; some rank is
  bool saver_ready = true;  // done with its part of the save in flight; all ranks are
};

// As they travel, beside a step's loss or alone.
using SignalNumbers = std::array<double, 2>;

inline SignalNumbers numbers_of(const Signals& signals) {
  return {signals.stop ? 1.0 : 0.0, signals.saver_ready ? 1.0 : 0.0};
}

// Adds those of one more rank.
inline void unite(Signals& all, const SignalNumbers& of) {
  const auto [stop, saver_ready] = of;
  all.stop = all.stop || stop != 0;
  all.saver_ready = all.saver_ready && saver_ready != 0;
}

}  // namespace muster::train
