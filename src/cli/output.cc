#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iostream>

namespace muster::cli {

int exit_code_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::not_found:
      return kNotFound;
    case ErrorCode::invalid_argument:
      return kUsage;
    case ErrorCode::already_exists:
    case ErrorCode::failed_precondition:
    case ErrorCode::resource_exhausted:
    case ErrorCode::unauthenticated:
      return kRefused;
    case ErrorCode::unavailable:
    case ErrorCode::timeout:
      return kUnavailable;
    default:
      return kFailed;
  }
}

int print_error(const Error& error) {
  std::cerr << "muster: " << error.message << std::endl;
  return exit_code_of(error);
}

bool is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

namespace {
// Columns on the screen: one a character, not a byte.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}
}  // namespace

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out += row[i];
      if (i + 1 < row.size()) out.append(widths[i] - width_of(row[i]) + 2, ' ');
    }
    out += '\n';
  }
  return out;
}

void print_json(const json::Object& object) { std::cout << json::pretty(object) << std::endl; }

std::string local_time(std::optional<double> unix_seconds) {
  if (!unix_seconds) return "-";
  const auto seconds = static_cast<std::time_t>(*unix_seconds);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::array<char, 32> buffer{};
  std::strftime(buffer.data(), buffer.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return buffer.data();
}

std::string bar(double fraction, int width) {
  const auto full = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * width));
  std::string out;
  for (int i = 0; i < width; ++i) out += i < full ? "█" : "░";
  return out;
}

}  // namespace muster::cli
