// For tests only: a Result that must hold a value, else its message is the failure. Any thread.
#pragma once

#include <gtest/gtest.h>

#define ASSERT_OK(expression)                                    \
  do {                                                           \
    const auto result_ = (expression);                           \
    ASSERT_TRUE(result_.has_value()) << result_.error().message; \
  } while (false)
