// Records as the store keeps them: JSON with a schema version. docs/formats/records-v1.md.
//
// A reader upgrades the version before its own and refuses a newer one. Pure; one thread.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "domain/commit.h"

namespace muster::wire {

// Of every kind of record. A change of a body's members that an older reader would misread raises it.
inline constexpr int kRecordVersion = 1;

std::string encode_record(const domain::Record& record);

// corrupt when the body is not what encode_record writes; unsupported when `version` is newer (or unknown).
Result<domain::Record> decode_record(domain::RecordKind kind, int version, std::string_view body);

}  // namespace muster::wire
