// A line of at most 511 bytes, as printf makes it. Any thread.
#pragma once

#include <cstdio>
#include <string>

namespace muster::train {

template <typename... Args>
std::string formatted(const char* pattern, Args... args) {
  char line[512];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

}  // namespace muster::train
