// The learning rate of each update: linear warm-up, then half a cosine (Loshchilov, Hutter: SGDR, 2017). Pure
// values; any thread.
#pragma once

#include <cstdint>

namespace muster::train {

// Linear warm-up to `peak` (update i of the first `warmup`: (i + 1) / warmup of it), then half a cosine down
// to final_ratio * peak at `steps`, flat behind.
struct LrSchedule {
  double peak = 3e-4;
  std::int64_t warmup = 0;
  std::int64_t steps = 1;
  double final_ratio = 0.1;

  // Of update `step`, the first is 0.
  double at(std::int64_t step) const;
};

}  // namespace muster::train
