// Records of a log segment, as in docs/formats/logs-v1.md. Pure: bytes in, bytes out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"

namespace muster::telemetry {

inline constexpr std::size_t kRecordHeaderBytes = 32;
inline constexpr std::size_t kLineBytesMax = 256 << 10;

struct Record {
  std::uint64_t sequence = 0;
  Time time;
  Time ingested;
  std::string_view text;
  std::size_t size() const { return kRecordHeaderBytes + text.size(); }
};

void append_record(std::string& out, const Record& record);

// The record at the start of `bytes`, its text a view into them; nullopt if it is cut short or does not match
// its checksum.
std::optional<Record> parse_record(std::string_view bytes);

// What a segment file begins with.
struct SegmentHeader {
  std::string group;
  std::string stream;
  Time created;                      // of the stream
  std::uint64_t first_sequence = 0;  // of the segment's first record
};

std::string encode_header(const SegmentHeader& header);

struct ParsedHeader {
  SegmentHeader header;
  std::size_t size = 0;  // the first record begins here
};
// nullopt if the bytes do not begin with a whole header that matches its checksum.
std::optional<ParsedHeader> parse_header(std::string_view bytes);
inline constexpr std::size_t kHeaderBytesMax = 4096;

}  // namespace muster::telemetry
