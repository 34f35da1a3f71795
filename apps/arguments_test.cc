#include "apps/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

template <class T>
std::string refusal(T minimum, T maximum, std::string text) {
  return between(minimum, maximum)(text);
}

TEST(Arguments, NumbersAreFiniteAndWithinTheirLimits) {
  for (const char* text : {"0", "1", "0.25", "1e-3"}) EXPECT_EQ(refusal(0.0, 1.0, text), "") << text;
  for (const char* text : {"nan", "-nan", "inf", "-inf", "1.01", "-0.1", "1e999", "", "x", "0.5x"})
    EXPECT_EQ(refusal(0.0, 1.0, text), "\"" + std::string(text) + "\" is not a number from 0 to 1");
  EXPECT_EQ(refusal(0.001, 1e6, "nan"), "\"nan\" is not a number from 0.001 to 1000000");
}

TEST(Arguments, WholeNumbersToo) {
  for (const char* text : {"1", "1024"}) EXPECT_EQ(refusal(1, 1024, text), "") << text;
  for (const char* text : {"0", "-1", "1025", "99999999999999999999", "1.5", "nan", ""}) {
    const std::string says = "\"" + std::string(text) + "\" is not a whole number from 1 to ";
    EXPECT_EQ(refusal(1, 1024, text), says + "1024");
    EXPECT_EQ(refusal<std::int64_t>(1, 1024, text), says + "1024");
    EXPECT_EQ(refusal<std::uint64_t>(1, 1024, text), says + "1024");
  }
}

TEST(Arguments, SizesHaveUnits) {
  const auto limits = size_between(1000, 1'000'000'000'000'000);
  for (const auto& [given, bytes] : {std::pair{"1000", "1000"}, {"50KB", "50000"}, {"5 GB", "5000000000"}}) {
    std::string text = given;
    EXPECT_EQ(limits(text), "") << given;
    EXPECT_EQ(text, bytes);
  }
  for (const char* given :
       {"-1", "-1GB", "0", "999", "1001TB", "99999999999999999999", "99999999PB", "GB", "5QB", ""}) {
    std::string text = given;
    EXPECT_EQ(limits(text),
              "\"" + std::string(given) +
                  "\" is not a size from 1000 to 1000000000000000 bytes, for example 500MB or 5GB");
  }
}

}  // namespace
}  // namespace muster
