// The text of manifest.json: between CheckpointInfo and bytes. Internal to ckpt.
//
// One line: {"crc32c":"xxxxxxxx","manifest":{...}}, the checksum over the bytes of the inner object, so that
// a flipped bit in a number is noticed too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "train/ckpt/checkpoint.h"

namespace muster::train {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr std::uint64_t kSliceAlignment = 64;
inline constexpr std::int64_t kCheckpointVersion = 1;

// records: one a rank, {"file": {...}, "slices": [...]}.
std::string manifest_text(const CheckpointInfo& info, const std::vector<json::Object>& records);

// The inner object. corrupt: the checksum does not fit; unsupported: a newer version.
Result<json::Object> parse_manifest(std::string_view text);

// The info part of it; files and slices are the Reader's.
Result<CheckpointInfo> info_of(const json::Object& manifest);

json::Array crcs_to_json(const std::vector<std::uint32_t>& crcs);
Result<std::vector<std::uint32_t>> crcs_from_json(const json::Array& array);

}  // namespace muster::train
