#include "train/ckpt/manifest.h"

#include <charconv>
#include <cstdio>

#include "base/crypto.h"

namespace muster::train {
namespace {

constexpr std::string_view kHead = "{\"crc32c\":\"";
constexpr std::string_view kMiddle = "\",\"manifest\":";

std::optional<std::uint32_t> parse_hex8(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 8 || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Earlier programs wrote rank 0's alone, as "machine".
std::vector<json::Object> machines_of(const json::Object& manifest) {
  std::vector<json::Object> machines;
  if (const auto* first = json::opt_object(manifest, "machine")) machines.push_back(*first);
  if (const auto* all = json::opt_array(manifest, "machines")) {
    for (const auto& one : *all) {
      if (one.is_object()) machines.push_back(one.as_object());
    }
  }
  return machines;
}

}  // namespace

std::string hex8(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

std::uint64_t TensorInfo::numel() const {
  std::uint64_t product = 1;
  for (const std::int64_t extent : shape) product *= static_cast<std::uint64_t>(extent);
  return product;
}

std::uint64_t TensorInfo::element_bytes() const { return dtype == "F32" ? 4 : 8; }

json::Array crcs_to_json(const std::vector<std::uint32_t>& crcs) {
  json::Array array;
  for (const std::uint32_t crc : crcs) array.emplace_back(hex8(crc));
  return array;
}

Result<std::vector<std::uint32_t>> crcs_from_json(const json::Array& array) {
  std::vector<std::uint32_t> crcs;
  for (const auto& element : array) {
    const auto crc = element.is_string() ? parse_hex8(json::view(element.as_string())) : std::nullopt;
    if (!crc) return fail(ErrorCode::corrupt, "a block checksum is not 8 hex digits");
    crcs.push_back(*crc);
  }
  return crcs;
}

Result<std::uint64_t> get_count(const json::Object& object, std::string_view name) {
  MUSTER_TRY(const std::int64_t value, json::get_int(object, name));
  if (value < 0) return fail(ErrorCode::corrupt, std::string(name) + " is negative");
  return static_cast<std::uint64_t>(value);
}

json::Object slice_to_json(const Slice& slice, const TensorInfo& tensor) {
  json::Object object{{"tensor", slice.tensor}, {"begin", slice.flat.begin}, {"end", slice.flat.end}};
  if (slice.box != whole_box(tensor.shape)) {
    object["start"] = json::Array(slice.box.start.begin(), slice.box.start.end());
    object["length"] = json::Array(slice.box.length.begin(), slice.box.length.end());
  }
  return object;
}

Result<void> check_within(const Slice& slice, const TensorInfo& tensor) {
  const auto& [name, box, flat] = slice;
  const auto axes = tensor.shape.size();
  bool inside = box.start.size() == axes && box.length.size() == axes;
  for (std::size_t i = 0; inside && i < axes; ++i) {
    inside = box.start[i] >= 0 && box.length[i] >= 0 && box.start[i] <= tensor.shape[i] &&
             box.length[i] <= tensor.shape[i] - box.start[i];
  }
  if (!inside) return fail(ErrorCode::invalid_argument, "a slice of " + tensor.name + " is not inside of it");
  if (flat.begin >= 0 && flat.begin <= flat.end && flat.end <= box.numel()) return {};
  return fail(ErrorCode::invalid_argument, tensor.name + " has " + std::to_string(box.numel()) +
                                               " elements there, [" + std::to_string(flat.begin) + ", " +
                                               std::to_string(flat.end) + ") were asked for");
}

Result<Slice> slice_from_json(const json::Object& object, const TensorInfo& tensor) {
  Slice slice{.tensor = tensor.name, .box = whole_box(tensor.shape), .flat = {}};
  MUSTER_TRY(slice.flat.begin, json::get_int(object, "begin"));
  MUSTER_TRY(slice.flat.end, json::get_int(object, "end"));
  const std::pair<const char*, std::vector<std::int64_t>*> parts[] = {{"start", &slice.box.start},
                                                                      {"length", &slice.box.length}};
  for (const auto& [name, target] : parts) {
    const auto* array = json::opt_array(object, name);
    if (array == nullptr) continue;
    target->clear();
    for (const auto& value : *array) target->push_back(value.is_int64() ? value.as_int64() : -1);
  }
  if (auto inside = check_within(slice, tensor); !inside) {
    return fail(ErrorCode::corrupt, inside.error().message);
  }
  return slice;
}

std::string manifest_text(const CheckpointInfo& info, const std::vector<json::Object>& records) {
  json::Array tensors, files, slices;
  const json::Array machines(info.machines.begin(), info.machines.end());
  for (const TensorInfo& tensor : info.tensors) {
    json::Array shape(tensor.shape.begin(), tensor.shape.end());
    tensors.push_back(
        json::Object{{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", std::move(shape)}});
  }
  for (const auto& record : records) {
    files.push_back(record.at("file"));
    for (const auto& slice : record.at("slices").as_array()) slices.push_back(slice);
  }
  const json::Object manifest{{"format", "muster-checkpoint"},
                              {"version", kCheckpointVersion},
                              {"step", info.step},
                              {"samples", info.samples},
                              {"tokenizer", info.tokenizer_hash},
                              {"config", info.config},
                              {"layout", info.layout},
                              {"machines", machines},
                              {"data", info.data},
                              {"block_bytes", kBlockBytes},
                              {"tensors", std::move(tensors)},
                              {"files", std::move(files)},
                              {"slices", std::move(slices)}};
  const std::string body = json::dump(manifest);
  return std::string(kHead) + hex8(crypto::crc32c(body)) + std::string(kMiddle) + body + "}\n";
}

Result<json::Object> parse_manifest(std::string_view text) {
  const std::size_t body_at = kHead.size() + 8 + kMiddle.size();
  if (text.size() < body_at + 4 || !text.starts_with(kHead) ||
      text.substr(kHead.size() + 8, kMiddle.size()) != kMiddle || !text.ends_with("}\n")) {
    return fail(ErrorCode::corrupt,
                "not a checkpoint manifest, or cut off after " + std::to_string(text.size()) + " bytes");
  }
  const auto stored = parse_hex8(text.substr(kHead.size(), 8));
  const auto body = text.substr(body_at, text.size() - body_at - 2);
  const std::uint32_t found = crypto::crc32c(body);
  if (!stored || *stored != found) {
    return fail(ErrorCode::corrupt, "altered: its checksum is " + hex8(found) + ", stored is " +
                                        std::string(text.substr(kHead.size(), 8)));
  }
  MUSTER_TRY(json::Object manifest, json::parse_object(body));
  MUSTER_TRY(const std::string format, json::get_string(manifest, "format"));
  MUSTER_TRY(const std::int64_t version, json::get_int(manifest, "version"));
  if (format != "muster-checkpoint" || version < 1) {
    return fail(ErrorCode::corrupt, "format \"" + format + "\" version " + std::to_string(version));
  }
  if (version > kCheckpointVersion) {
    return fail(ErrorCode::unsupported,
                "checkpoint version " + std::to_string(version) + "; this program reads up to " +
                    std::to_string(kCheckpointVersion) + ": use a newer muster-train");
  }
  return manifest;
}

Result<CheckpointInfo> info_of(const json::Object& manifest) {
  CheckpointInfo info;
  MUSTER_TRY(info.step, json::get_int(manifest, "step"));
  MUSTER_TRY(const std::int64_t samples, json::get_int(manifest, "samples"));
  info.samples = static_cast<std::uint64_t>(samples);
  MUSTER_TRY(info.tokenizer_hash, json::get_string(manifest, "tokenizer"));
  const std::pair<const char*, json::Object*> parts[] = {
      {"config", &info.config}, {"layout", &info.layout}, {"data", &info.data}};
  for (const auto& [name, target] : parts) {
    if (const auto* object = json::opt_object(manifest, name)) *target = *object;
  }
  info.machines = machines_of(manifest);
  const auto* tensors = json::opt_array(manifest, "tensors");
  if (tensors == nullptr) return fail(ErrorCode::corrupt, "no tensors");
  for (const auto& element : *tensors) {
    if (!element.is_object()) return fail(ErrorCode::corrupt, "a tensor is not an object");
    TensorInfo tensor;
    MUSTER_TRY(tensor.name, json::get_string(element.as_object(), "name"));
    MUSTER_TRY(tensor.dtype, json::get_string(element.as_object(), "dtype"));
    if (tensor.dtype != "F32" && tensor.dtype != "F64" && tensor.dtype != "I64") {
      return fail(ErrorCode::unsupported, "tensor " + tensor.name + " has dtype " + tensor.dtype);
    }
    const auto* shape = json::opt_array(element.as_object(), "shape");
    if (shape == nullptr) return fail(ErrorCode::corrupt, "tensor " + tensor.name + " has no shape");
    for (const auto& extent : *shape) {
      if (!extent.is_int64() || extent.as_int64() < 0)
        return fail(ErrorCode::corrupt, "tensor " + tensor.name + ": bad shape");
      tensor.shape.push_back(extent.as_int64());
    }
    info.tensors.push_back(std::move(tensor));
  }
  return info;
}

}  // namespace muster::train
