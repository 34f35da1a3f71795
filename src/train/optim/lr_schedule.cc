#include "train/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace muster::train {

double LrSchedule::at(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double low = peak * final_ratio;
  if (step >= steps) return low;
  const double part =
      static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(steps - warmup, 1));
  return low + (peak - low) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace muster::train
