// Where jobs run. Adapters: engine/local (this machine), later slurm and kubernetes, and the simulated one in
// sim. One contract suite: engine/contract.
//
// Every operation is idempotent by LaunchId and may be repeated after a crash. Calls come from the effect
// executor's threads, several at once; they may block (seconds), never for the length of a job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "domain/cluster.h"
#include "domain/launch.h"

namespace muster::ports {

// Posted by the engine from its own threads when a runner process is gone (local: pidfd). The spool it left
// has been shipped by then.
struct NodeExit {
  domain::LaunchId id;
  std::string message;  // "runner killed by signal 9"
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual void on_exit(std::function<void(const NodeExit&)> handler) = 0;  // set once, before any launch
  virtual Result<domain::Inventory> inventory() = 0;
  // All ranks or none. Ranks that already run (same LaunchId) are left alone.
  virtual Result<void> launch(const domain::GangLaunch& gang) = 0;
  // SIGTERM to the runner, SIGKILL after `grace`; returns when asked for, not when dead. Unknown: success.
  virtual Result<void> stop(const domain::LaunchId& id, Millis grace) = 0;
  // Frees what an ended launch left behind (processes, mounts, run folder). Unknown: success.
  virtual Result<void> release(const domain::LaunchId& id) = 0;
  virtual Result<std::vector<domain::Observation>> observe() = 0;
};

}  // namespace muster::ports
