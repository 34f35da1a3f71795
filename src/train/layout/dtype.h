// Element types of a model, and bf16 as a number.
//
// A type has a wide one, in which sums are taken: gradients, optimizer state, norms and losses of a model in
// bf16 are fp32. Values; any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace muster::train {

// The upper half of a float. Arithmetic is done in float; the way back rounds to the nearest, ties to even,
// and what is beyond the largest bf16 becomes infinite. NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t upper = all >> 16, lower = all & 0xffff;
    const bool nan = (all & 0x7fffffff) > 0x7f800000;
    const std::uint32_t quiet = upper | (lower != 0 ? 0x40 : 0);  // rounding could make a NaN infinite
    bits = static_cast<std::uint16_t>(nan ? quiet : (all + 0x7fff + (upper & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};
static_assert(sizeof(BFloat16) == 2);

enum class Dtype { f32, f64, bf16 };

constexpr std::int64_t size_of(Dtype dtype) {
  return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2;  // bytes
}
// The type of sums, and of gradients, for elements of this type; Wide<T> likewise.
constexpr Dtype wide(Dtype dtype) { return dtype == Dtype::bf16 ? Dtype::f32 : dtype; }

namespace detail {

template <typename T>
struct Element {
  using Wide = T;
};
template <>
struct Element<float> {
  static constexpr Dtype dtype = Dtype::f32;
  using Wide = float;
};
template <>
struct Element<double> {
  static constexpr Dtype dtype = Dtype::f64;
  using Wide = double;
};
template <>
struct Element<BFloat16> {
  static constexpr Dtype dtype = Dtype::bf16;
  using Wide = float;
};

}  // namespace detail

template <typename T>
using Wide = typename detail::Element<T>::Wide;
template <typename T>
constexpr Dtype dtype_of = detail::Element<T>::dtype;

}  // namespace muster::train
