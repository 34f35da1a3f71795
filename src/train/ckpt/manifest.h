// The text of manifest.json: between CheckpointInfo and bytes. Internal to ckpt.
//
// One line: {"crc32c":"xxxxxxxx","manifest":{...}}, the checksum over the bytes of the inner object, so that
// a flipped bit in a number is noticed too. Functions without state: any thread.
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

// {"tensor", "begin", "end"}; with "start" and "length" per axis unless the box is the whole tensor.
json::Object slice_to_json(const Slice& slice, const TensorInfo& tensor);
// corrupt: it does not lie in the tensor.
Result<Slice> slice_from_json(const json::Object& object, const TensorInfo& tensor);
// invalid_argument: the slice has other axes than the tensor, or ends outside of it.
Result<void> check_within(const Slice& slice, const TensorInfo& tensor);

// A number that is not negative.
Result<std::uint64_t> get_count(const json::Object& object, std::string_view name);

std::string hex8(std::uint32_t value);  // 8 hex digits, as checksums are written
json::Array crcs_to_json(const std::vector<std::uint32_t>& crcs);
Result<std::vector<std::uint32_t>> crcs_from_json(const json::Array& array);

}  // namespace muster::train
