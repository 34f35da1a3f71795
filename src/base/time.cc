#include "base/time.h"

#include <array>
#include <cstdio>
#include <ctime>

namespace muster {
namespace {

std::tm utc(Time time) {
  std::int64_t seconds = time.unix_ms / 1000;
  if (time.unix_ms % 1000 < 0) --seconds;
  const auto value = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&value, &parts);
  return parts;
}

std::string format(const std::tm& parts, const char* pattern) {
  std::array<char, 64> buffer{};
  const auto length = std::strftime(buffer.data(), buffer.size(), pattern, &parts);
  return {buffer.data(), length};
}

std::optional<Time> parse(std::string_view text, const char* pattern, std::string_view* rest = nullptr) {
  const std::string copy(text);
  std::tm parts{};
  const char* end = strptime(copy.c_str(), pattern, &parts);
  if (end == nullptr) return std::nullopt;
  const auto used = static_cast<std::size_t>(end - copy.c_str());
  if (rest != nullptr) {
    *rest = text.substr(used);
  } else if (used != copy.size()) {
    return std::nullopt;
  }
  return Time{static_cast<std::int64_t>(timegm(&parts)) * 1000};
}

}  // namespace

Time SystemClock::now() const {
  return {std::chrono::duration_cast<Millis>(std::chrono::system_clock::now().time_since_epoch()).count()};
}

Millis boot_time() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return Millis{static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000};
}

std::string format_iso8601(Time time) { return format(utc(time), "%Y-%m-%dT%H:%M:%SZ"); }

std::string format_iso8601_millis(Time time) {
  std::array<char, 8> millis{};
  const auto ms = static_cast<int>(((time.unix_ms % 1000) + 1000) % 1000);
  std::snprintf(millis.data(), millis.size(), ".%03dZ", ms);
  return format(utc(time), "%Y-%m-%dT%H:%M:%S") + millis.data();
}

std::string format_compact(Time time) { return format(utc(time), "%Y%m%dT%H%M%SZ"); }

std::string format_http_date(Time time) { return format(utc(time), "%a, %d %b %Y %H:%M:%S GMT"); }

std::optional<Time> parse_compact(std::string_view text) { return parse(text, "%Y%m%dT%H%M%SZ"); }

std::optional<Time> parse_http_date(std::string_view text) {
  return parse(text, "%a, %d %b %Y %H:%M:%S GMT");
}

std::optional<Time> parse_iso8601(std::string_view text) {
  std::string_view rest;
  auto time = parse(text, "%Y-%m-%dT%H:%M:%S", &rest);
  if (!time) return std::nullopt;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    std::int64_t scale = 100;
    std::size_t digits = 0;
    while (digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9') {
      time->unix_ms += scale * (rest[digits] - '0');
      scale /= 10;
      ++digits;
    }
    if (digits == 0) return std::nullopt;
    rest.remove_prefix(digits);
  }
  if (rest != "Z") return std::nullopt;
  return time;
}

std::string format_duration(Millis duration) {
  std::array<char, 48> buffer{};
  const auto ms = duration.count();
  if (ms < 1000) {
    std::snprintf(buffer.data(), buffer.size(), "%lld ms", static_cast<long long>(ms));
  } else if (ms < 60'000) {
    std::snprintf(buffer.data(), buffer.size(), "%.1f s", static_cast<double>(ms) / 1000.0);
  } else if (ms < 3'600'000) {
    std::snprintf(buffer.data(), buffer.size(), "%lld min %02lld s", static_cast<long long>(ms / 60'000),
                  static_cast<long long>(ms / 1000 % 60));
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%lld h %02lld min", static_cast<long long>(ms / 3'600'000),
                  static_cast<long long>(ms / 60'000 % 60));
  }
  return buffer.data();
}

}  // namespace muster
