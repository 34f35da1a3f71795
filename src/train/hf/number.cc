#include "train/hf/number.h"

#include <bit>
#include <cstring>

#include "base/assert.h"
#include "train/layout/dtype.h"

namespace muster::train::hf {
namespace {

static_assert(std::endian::native == std::endian::little);

struct Format {
  Number number;
  std::int64_t bytes;
  std::string_view safetensors, torch;
};
constexpr Format kFormats[] = {{Number::f32, 4, "F32", "float32"},
                               {Number::f16, 2, "F16", "float16"},
                               {Number::bf16, 2, "BF16", "bfloat16"}};
const Format& format_of(Number number) { return kFormats[static_cast<std::size_t>(number)]; }

float from_f16(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
std::uint16_t to_f16(float value) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)); }

float from_bf16(std::uint16_t bits) { return std::bit_cast<BFloat16>(bits); }
std::uint16_t to_bf16(float value) { return BFloat16(value).bits; }

template <typename Convert>
void each_in(std::span<const std::byte> in, std::span<float> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &in[2 * i], 2);
    out[i] = convert(bits);
  }
}

template <typename Convert>
void each_out(std::span<const float> in, std::span<std::byte> out, Convert convert) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::uint16_t bits = convert(in[i]);
    std::memcpy(&out[2 * i], &bits, 2);
  }
}

}  // namespace

std::int64_t size_of(Number number) { return format_of(number).bytes; }
std::string_view safetensors_name(Number number) { return format_of(number).safetensors; }
std::string_view torch_name(Number number) { return format_of(number).torch; }

std::optional<Number> number_of(std::string_view safetensors_name) {
  for (const Format& format : kFormats) {
    if (format.safetensors == safetensors_name) return format.number;
  }
  return std::nullopt;
}

void widen(Number number, std::span<const std::byte> in, std::span<float> out) {
  MUSTER_ASSERT(in.size() == out.size() * static_cast<std::size_t>(size_of(number)));
  if (out.empty()) return;
  if (number == Number::f32) std::memcpy(out.data(), in.data(), in.size());
  if (number == Number::f16) each_in(in, out, from_f16);
  if (number == Number::bf16) each_in(in, out, from_bf16);
}

void narrow(Number number, std::span<const float> in, std::span<std::byte> out) {
  MUSTER_ASSERT(out.size() == in.size() * static_cast<std::size_t>(size_of(number)));
  if (in.empty()) return;
  if (number == Number::f32) std::memcpy(out.data(), in.data(), out.size());
  if (number == Number::f16) each_out(in, out, to_f16);
  if (number == Number::bf16) each_out(in, out, to_bf16);
}

}  // namespace muster::train::hf
