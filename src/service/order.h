// Orders: effects of the control core made concrete, so that whoever carries them out needs nothing of State.
//
// perform() carries one out, blocking: the pool of musterd and the simulation call the same function. Every
// order may be repeated. Threading: perform() runs on any number of threads at once, as its ports allow;
// orders are values.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "control/control.h"
#include "domain/job.h"
#include "domain/workload.h"
#include "ports/engine.h"
#include "ports/log_store.h"
#include "ports/secrets.h"

namespace muster::service {

struct LaunchOrder {
  domain::Attempt attempt;
  domain::JobKind kind = domain::JobKind::training;
  std::string job_name;
  // With what is left of the run time. An error, as the request could not be read, fails the launch.
  Result<domain::Workload> workload;
};
struct StopOrder {
  domain::LaunchId launch;
  Millis grace{0};
};
struct ReleaseOrder {
  domain::LaunchId launch;
};
struct RefreshOrder {
  std::uint64_t asked = 0;  // moment of the state
};
struct OutboxOrder {
  domain::Outbox outbox;
};
using Order = std::variant<LaunchOrder, StopOrder, ReleaseOrder, RefreshOrder, OutboxOrder>;

// How an order ended: what the control core must hear of it, and whether to try again later.
struct Finished {
  std::string key;
  std::optional<control::Event> event;
  std::optional<Error> error;
};

// Takes orders and posts Loop::finished for each, once, from any thread. Called on the loop's thread; must
// not block.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(std::string key, Order order) = 0;
};

struct OrderPorts {
  ports::Engine& engine;
  ports::LogStore& logs;
  ports::Secrets& secrets;
  const Clock& clock;
};
[[nodiscard]] Finished perform(const std::string& key, const Order& order, const OrderPorts& ports);

}  // namespace muster::service
