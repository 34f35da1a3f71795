// Time as Muster keeps it: UTC milliseconds since the epoch, and durations in milliseconds.
//
// Pure folders take Time as an argument. Only the shell asks a Clock.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

using Millis = std::chrono::milliseconds;

struct Time {
  std::int64_t unix_ms = 0;
  constexpr auto operator<=>(const Time&) const = default;
  constexpr Time operator+(Millis d) const { return {unix_ms + d.count()}; }
  constexpr Time operator-(Millis d) const { return {unix_ms - d.count()}; }
  constexpr Millis operator-(Time other) const { return Millis{unix_ms - other.unix_ms}; }
  // Seconds with three decimals, as the AWS JSON protocols write timestamps.
  constexpr double unix_seconds() const { return static_cast<double>(unix_ms) / 1000.0; }
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
};

// The machine's wall clock. May step; the control loop makes it non-decreasing.
class SystemClock final : public Clock {
 public:
  Time now() const override;
};

// CLOCK_BOOTTIME in milliseconds: for durations that kill (grace, maximum run time).
Millis boot_time();

std::string format_iso8601(Time time);         // 2026-11-29T16:41:58Z (S3 XML adds .mmm: see below)
std::string format_iso8601_millis(Time time);  // 2026-11-29T16:41:58.123Z
std::string format_compact(Time time);         // 20261129T164158Z, the form of x-amz-date
std::string format_http_date(Time time);       // Sun, 29 Nov 2026 16:41:58 GMT
std::optional<Time> parse_compact(std::string_view text);
std::optional<Time> parse_http_date(std::string_view text);
// ISO 8601 with Z, with or without milliseconds.
std::optional<Time> parse_iso8601(std::string_view text);

// "850 ms", "1.2 s", "4 min 05 s", "2 h 10 min": for people.
std::string format_duration(Millis duration);

}  // namespace muster
