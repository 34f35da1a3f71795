// The control service as musterd runs it: the loop on one control thread, effects on a small pool.
#pragma once

#include <functional>
#include <memory>

#include "base/error.h"
#include "base/time.h"
#include "ports/engine.h"
#include "ports/log_store.h"
#include "ports/secrets.h"
#include "ports/store.h"
#include "service/loop.h"
#include "service/service.h"

namespace muster::service {

// Not owned; must outlive the RunningService. The store is used by the control thread only, but for opening.
struct ServicePorts {
  ports::Store& store;
  ports::Engine& engine;
  ports::LogStore& logs;
  ports::Secrets& secrets;
  const Clock& clock;
};

struct RunningOptions {
  LoopOptions loop;
  int executor_threads = 4;
  // Called once, on the control thread, when the service can go on no longer (the store was taken over by
  // another process): the program must end. Jobs keep running.
  std::function<void(const Error&)> on_fatal;
};

// Thread-safe. The destructor stops the threads; jobs keep running.
class RunningService : public Service {
 public:
  // Stops taking work, answers what waits with `unavailable`, joins the threads. Idempotent.
  virtual void shut_down() = 0;
};

// Takes the epoch, loads the state, starts the threads; the engine's inventory follows at once.
[[nodiscard]] Result<std::unique_ptr<RunningService>> start(const ServicePorts& ports,
                                                            RunningOptions options = {});

}  // namespace muster::service
