// Where a step that takes long is asked whether to go on. Pure; any thread.
#pragma once

#include <functional>
#include <optional>

#include "base/error.h"

namespace muster::train {

// Asked now and then, and answered alike on all ranks: whether to go on.
using GoOn = std::function<Result<bool>()>;

// Before every `every`-th level of a step (schedule.h), if at least as many are still to do.
struct Pauses {
  GoOn go_on;
  int every = 0;  // 0: never
  bool at(int level, int levels) const {
    return every > 0 && level > 0 && level % every == 0 && levels - level >= every;
  }
};

// The `every` for one pause in `every_s` seconds, if the step has `levels` and the one before took `seconds`;
// so a step of less than twice as long has no pause. nullopt: no pauses are wanted; nothing is known of how
// long a step takes, then there is one before every level.
inline int levels_between_pauses(std::optional<double> every_s, std::optional<double> seconds, int levels) {
  if (!every_s) return 0;
  if (!seconds) return 1;
  int every = 1;
  while (every <= levels && every * *seconds < levels * *every_s) ++every;
  return every <= levels ? every : 0;
}

}  // namespace muster::train
