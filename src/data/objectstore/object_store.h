// The embedded object store: content files named by number, everything else in its own SQLite database.
//
// Layout and crash rules: docs/formats/objects-v1.md; why: docs/adr/0012-embedded-object-store.md. One
// process owns the folder at a time. Thread-safe: writes are grouped into commits by one thread, reads use a
// pool of connections.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/notes.h"
#include "ports/object_store.h"

namespace muster::objectstore {

struct Options {
  std::string directory;  // made when absent
  // false: a power loss may lose the last writes, never corrupt older ones; a killed process loses nothing.
  bool sync = true;
  int readers = 8;                               // connections for reads; more readers wait
  std::uint64_t buffer_bytes_max = 64ULL << 20;  // of bodies on their way to disk; more writers wait
  std::uint64_t ballast_bytes = 4ULL << 20;      // held back so that removals work on a full disk
  std::uint64_t part_bytes_min = ports::ObjectLimits::part_bytes_min;  // smaller in tests
  Note note = {};  // objects whose content is damaged on disk: any thread; may be empty
};

Result<std::unique_ptr<ports::ObjectStore>> open(const Options& options);

}  // namespace muster::objectstore
