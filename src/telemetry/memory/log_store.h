// A LogStore in memory, for tests and the simulation. Thread-safe. Nothing is bounded but what the port
// bounds.
#pragma once

#include <memory>

#include "ports/log_store.h"

namespace muster::telemetry {

std::unique_ptr<ports::LogStore> make_memory_log_store();

}  // namespace muster::telemetry
