// MUSTER_ASSERT: for programmer errors only, never for input. Stays on in release builds. Any thread.
#pragma once

namespace muster::base {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
}  // namespace muster::base

#define MUSTER_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::muster::base::assertion_failed(#expression, __FILE__, __LINE__))
