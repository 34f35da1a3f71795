// The LogStore on a folder: one run of segment files a stream (docs/formats/logs-v1.md). Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "ports/log_store.h"

namespace muster::telemetry {

struct LogStoreOptions {
  std::uint64_t segment_bytes_max = 64ULL << 20;  // a segment is closed at the first append behind this
};

struct OpenedLogStore {
  std::unique_ptr<ports::LogStore> store;
  std::vector<std::string> notices;  // what was damaged and is set aside, one sentence each
};

// Opens or makes `folder`. Cost: one small read a segment; contents are read at first use of a stream. Damage
// keeps nobody from the other streams: a stream with a damaged header is set aside as files that end in
// .damaged. Errors: the folder cannot be read or written.
// Precondition: this process alone writes in `folder` (the data directory's lock).
Result<OpenedLogStore> open_log_store(const std::string& folder, const LogStoreOptions& options = {});

}  // namespace muster::telemetry
