// What the APIs see of the control service: commands, and views of jobs, nodes and launches. How it works is
// in loop.h; musterd runs it by running.h. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "control/control.h"
#include "ports/engine.h"
#include "ports/log_store.h"
#include "ports/secrets.h"
#include "ports/store.h"

namespace muster::service {

// A job as Describe shows it.
struct JobView {
  domain::Job job;
  std::string request;      // JSON, as received
  std::string explanation;  // control::explain, for live jobs
};

// What List shows; live and ended alike.
struct JobSummary {
  domain::JobId id;
  domain::JobKind kind = domain::JobKind::training;
  std::string name;
  Time created;
  Time modified;
  std::optional<Time> ended;
  domain::Phase phase = domain::Phase::queued;
  std::optional<domain::Cause> stop;  // of a live job: why it is being stopped
  std::optional<domain::Outcome> outcome;
  std::optional<domain::Cause> cause;
};

struct NodeView {
  domain::Node node;
  std::string job;  // name of the job that holds it, or empty
  int rank = 0;
};

// A launch as those who serve its runner know it.
struct LaunchInfo {
  domain::JobKind kind = domain::JobKind::training;
  std::string job_name;
  std::string log_group;
  std::string log_stream;
};

// What api handlers see of the service. Thread-safe. But for live_launch(), every call blocks its caller
// until the control thread has answered (after the commit). unavailable: the store failed, retry;
// resource_exhausted: queue full.
class Service {
 public:
  virtual ~Service() = default;
  virtual Result<control::Reply> call(control::Event command) = 0;
  virtual Result<JobView> job(domain::JobKind kind, const std::string& name) = 0;  // not_found
  virtual Result<std::vector<JobSummary>> jobs(domain::JobKind kind) = 0;          // by id
  virtual Result<std::vector<NodeView>> nodes() = 0;
  virtual Result<domain::AccessKey> access_key(const std::string& id) = 0;  // not_found
  // nullopt in the answer: stale launch. Calls `done` once: at once if the version differs from `after`, else
  // at the next change or after `wait`. `done` runs on the control thread and must not block.
  using DesiredDone = std::function<void(Result<std::optional<domain::Desired>>)>;
  virtual void watch(const domain::LaunchId& launch, std::uint64_t after, Millis wait, DesiredDone done) = 0;
  // nullopt: stale or ended, its credentials and logs are good no longer. As the last commit left it; waits
  // for nothing.
  virtual std::optional<LaunchInfo> live_launch(const domain::LaunchId& launch) = 0;
};

}  // namespace muster::service
