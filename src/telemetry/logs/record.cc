#include "telemetry/logs/record.h"

#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/crypto.h"

namespace muster::telemetry {
namespace {

static_assert(std::endian::native == std::endian::little, "log segments are little-endian");

constexpr std::string_view kMagic = "MSTLOGS1";
constexpr std::size_t kFixedBytes = 40;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T get(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

// u32 length of the text, u32 CRC32C of everything behind it, u64 sequence, i64 time, i64 ingested, text.
// The length is covered too: it is put in front of the checksum's data.
void append_record(std::string& out, const Record& record) {
  MUSTER_ASSERT(record.text.size() <= kLineBytesMax);
  const auto begin = out.size();
  put(out, static_cast<std::uint32_t>(record.text.size()));
  put(out, std::uint32_t{0});
  put(out, record.sequence);
  put(out, record.time.unix_ms);
  put(out, record.ingested.unix_ms);
  out += record.text;
  const std::string_view written = std::string_view(out).substr(begin);
  const auto crc = crypto::crc32c(written.substr(8), crypto::crc32c(written.substr(0, 4)));
  std::memcpy(out.data() + begin + 4, &crc, sizeof crc);
}

std::optional<Record> parse_record(std::string_view bytes) {
  if (bytes.size() < kRecordHeaderBytes) return std::nullopt;
  const auto length = get<std::uint32_t>(bytes, 0);
  if (length > kLineBytesMax || length > bytes.size() - kRecordHeaderBytes) return std::nullopt;
  bytes = bytes.substr(0, kRecordHeaderBytes + length);
  if (get<std::uint32_t>(bytes, 4) != crypto::crc32c(bytes.substr(8), crypto::crc32c(bytes.substr(0, 4)))) {
    return std::nullopt;
  }
  return Record{.sequence = get<std::uint64_t>(bytes, 8),
                .time = {get<std::int64_t>(bytes, 16)},
                .ingested = {get<std::int64_t>(bytes, 24)},
                .text = bytes.substr(kRecordHeaderBytes)};
}

std::string encode_header(const SegmentHeader& header) {
  std::string out(kMagic);
  put(out, std::uint32_t{1});  // version
  put(out, std::uint32_t{0});  // size, below
  put(out, header.created.unix_ms);
  put(out, header.first_sequence);
  put(out, static_cast<std::uint32_t>(header.group.size()));
  put(out, static_cast<std::uint32_t>(header.stream.size()));
  MUSTER_ASSERT(out.size() == kFixedBytes);
  out += header.group;
  out += header.stream;
  const auto size = static_cast<std::uint32_t>(out.size() + 4);
  std::memcpy(out.data() + 12, &size, sizeof size);
  put(out, crypto::crc32c(out));
  MUSTER_ASSERT(out.size() <= kHeaderBytesMax);
  return out;
}

std::optional<ParsedHeader> parse_header(std::string_view bytes) {
  if (bytes.size() < kFixedBytes || !bytes.starts_with(kMagic) || get<std::uint32_t>(bytes, 8) != 1)
    return std::nullopt;
  const auto size = get<std::uint32_t>(bytes, 12);
  const auto group = get<std::uint32_t>(bytes, 32);
  const auto stream = get<std::uint32_t>(bytes, 36);
  if (size > bytes.size() || size > kHeaderBytesMax ||
      kFixedBytes + std::uint64_t{group} + stream + 4 != size) {
    return std::nullopt;
  }
  if (get<std::uint32_t>(bytes, size - 4) != crypto::crc32c(bytes.substr(0, size - 4))) return std::nullopt;
  return ParsedHeader{.header = {.group = std::string(bytes.substr(kFixedBytes, group)),
                                 .stream = std::string(bytes.substr(kFixedBytes + group, stream)),
                                 .created = {get<std::int64_t>(bytes, 16)},
                                 .first_sequence = get<std::uint64_t>(bytes, 24)},
                      .size = size};
}

}  // namespace muster::telemetry
