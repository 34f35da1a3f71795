#include "train/hf/number.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace muster::train::hf {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float widened(Number number, std::uint16_t bits) {
  float value = 0;
  widen(number, std::as_bytes(std::span(&bits, 1)), {&value, 1});
  return value;
}

std::uint16_t narrowed(Number number, float value) {
  std::uint16_t bits = 0;
  narrow(number, {&value, 1}, std::as_writable_bytes(std::span(&bits, 1)));
  return bits;
}

// The value by the fields of the format, IEEE 754.
double by_fields(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 == 0 ? 1 : -1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa == 0 ? sign * kInfinity : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(Number, EveryHalfBecomesItsValueAndComesBack) {
  for (const auto& [number, exponent_bits] : {std::pair{Number::f16, 5}, std::pair{Number::bf16, 8}}) {
    for (int i = 0; i <= 0xffff; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const double expected = by_fields(bits, exponent_bits);
      const float value = widened(number, bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << i;
        ASSERT_TRUE(std::isnan(widened(number, narrowed(number, value)))) << i;
        continue;
      }
      ASSERT_EQ(static_cast<double>(value), expected) << i;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << i;
      ASSERT_EQ(narrowed(number, value), bits);
    }
  }
}

// Between two neighbours the nearer one, at the middle the even one.
TEST(Number, RoundsToNearestEven) {
  Rng rng(3);
  for (const Number number : {Number::f16, Number::bf16}) {
    const auto largest = static_cast<std::uint16_t>(number == Number::f16 ? 0x7bff : 0x7f7f);
    for (int i = 0; i < 100'000; ++i) {
      const auto lower = static_cast<std::uint16_t>(rng.below(largest));
      const auto upper = static_cast<std::uint16_t>(lower + 1);
      const double a = static_cast<double>(widened(number, lower)),
                   b = static_cast<double>(widened(number, upper));
      const auto middle = static_cast<float>((a + b) / 2);
      if (static_cast<double>(middle) != (a + b) / 2) continue;  // below fp32's own steps
      const std::uint16_t even = lower % 2 == 0 ? lower : upper;
      ASSERT_EQ(narrowed(number, middle), even) << lower;
      ASSERT_EQ(narrowed(number, -middle), even | 0x8000);
      ASSERT_EQ(narrowed(number, std::nextafter(middle, 0.0F)), lower);
      ASSERT_EQ(narrowed(number, std::nextafter(middle, kInfinity)), upper);
    }
  }
}

TEST(Number, WhatIsTooLargeBecomesInfinite) {
  EXPECT_EQ(widened(Number::f16, narrowed(Number::f16, 65519.0F)), 65504.0F);
  EXPECT_EQ(widened(Number::f16, narrowed(Number::f16, 65520.0F)), kInfinity);
  EXPECT_EQ(widened(Number::bf16, narrowed(Number::bf16, -std::numeric_limits<float>::max())), -kInfinity);
  EXPECT_TRUE(std::isnan(widened(Number::bf16, narrowed(Number::bf16, std::bit_cast<float>(0x7f800001U)))));
}

TEST(Number, NamesAndSizes) {
  for (const char* name : {"F32", "F16", "BF16"}) EXPECT_EQ(safetensors_name(number_of(name).value()), name);
  EXPECT_FALSE(number_of("F64"));
  EXPECT_EQ(size_of(Number::f32) + size_of(Number::f16) + size_of(Number::bf16), 8);
  EXPECT_EQ(torch_name(Number::bf16), "bfloat16");
}

}  // namespace
}  // namespace muster::train::hf
