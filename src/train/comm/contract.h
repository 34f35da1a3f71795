// What every backend of comm must do, as checks that each rank of a group runs. The tests of the thread and
// the gloo backend run these very functions. A check runs on one thread of its rank, that of its Comm.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "train/comm/comm.h"

namespace muster::train {

struct CommCheck {
  std::string name;
  // Run on every rank of the group. Empty: passed; else what was wrong. A check may leave the group (reset);
  // a comm that it leaves in place the caller keeps until the check is over on every rank, because a rank
  // that goes earlier is an error to those that still work.
  std::function<std::string(std::unique_ptr<Comm>&)> run;
};

// `wait`: the time-out the group was made with, for the checks that run into it.
std::vector<CommCheck> comm_contract(Millis wait);

}  // namespace muster::train
