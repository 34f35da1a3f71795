// The LogStore on a folder: one run of segment files a stream (docs/formats/logs-v1.md). Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "ports/log_store.h"

namespace muster::telemetry {

struct LogStoreOptions {
  std::uint64_t segment_bytes_max = 64ULL << 20;  // a segment is closed at the first append behind this
};

// Opens or makes `folder`. Cost: one small read a segment; contents are read at first use of a stream.
// Precondition: this process alone writes in `folder` (the data directory's lock).
Result<std::unique_ptr<ports::LogStore>> open_log_store(const std::string& folder,
                                                        const LogStoreOptions& options = {});

}  // namespace muster::telemetry
