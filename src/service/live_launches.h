// The launches whose credentials and logs are good, as the last commit left them.
//
// The control thread publishes after every commit and load; any thread may look, and waits for no commit. So
// what jobs do most, objects and log lines, does not pass through the control thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "control/state.h"
#include "domain/ids.h"
#include "service/service.h"

namespace muster::service {

class LiveLaunches {
 public:
  // O(ranks of live jobs), as control::pending() is.
  void publish(const control::State& state);
  std::optional<LaunchInfo> find(const domain::LaunchId& launch) const;

 private:
  using Snapshot = std::map<domain::LaunchId, LaunchInfo>;

  mutable std::mutex mutex_;  // held for the copy of a pointer
  std::shared_ptr<const Snapshot> snapshot_ = std::make_shared<Snapshot>();
};

}  // namespace muster::service
