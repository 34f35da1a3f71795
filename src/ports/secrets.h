// Credentials that the service hands out. Thread-safe.
#pragma once

#include <string>

#include "base/error.h"
#include "base/time.h"
#include "domain/ids.h"

namespace muster::ports {

class Secrets {
 public:
  virtual ~Secrets() = default;
  // The runner's own credential: stateless, good for this LaunchId only, refused once the launch has ended.
  virtual std::string runner_token(const domain::LaunchId& id, Time now) = 0;
};

}  // namespace muster::ports
