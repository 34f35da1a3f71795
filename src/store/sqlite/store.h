// The Store on SQLite: WAL, synchronous=FULL. Tables: record(kind, key, revision, version, body) and
// meta(commit_sequence, epoch, format). Bodies are docs/formats/records-v1.md.
//
// A ballast file beside the database is given up when the disk is full, so that musterd can still start, and
// stops and ends be written; low_on_space() is true until it could be put back. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "ports/store.h"

namespace muster::store {

struct SqliteOptions {
  std::uint64_t ballast_bytes = 8ULL << 20;  // 0: none
};

// What low_on_space() of a store in this folder says, whether or not one is open there.
std::optional<Shortage> low_on_space(const std::string& directory, const SqliteOptions& options = {});

// Opens or creates `<directory>/state.db` and `<directory>/ballast`; `directory` must exist.
[[nodiscard]] Result<std::unique_ptr<ports::Store>> open_sqlite(const std::string& directory,
                                                                const SqliteOptions& options = {});

}  // namespace muster::store
