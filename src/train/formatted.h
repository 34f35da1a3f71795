// Text as printf makes it, of any length. Asserts that the pattern and its arguments are good. Any thread.
#pragma once

#include <cstdio>
#include <string>

#include "base/assert.h"

namespace muster::train {

template <typename... Args>
std::string formatted(const char* pattern, Args... args) {
  const int length = std::snprintf(nullptr, 0, pattern, args...);
  MUSTER_ASSERT(length >= 0);
  std::string text(static_cast<std::size_t>(length), '\0');
  std::snprintf(text.data(), text.size() + 1, pattern, args...);
  return text;
}

}  // namespace muster::train
