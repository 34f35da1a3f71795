// The number formats of weights in safetensors files, and fp32, in which Muster holds them.
//
// fp16 and bf16 become fp32 exactly. The other way rounds to the nearest, ties to even; what is beyond the
// largest number becomes infinite, as IEEE 754 has it. Pure functions: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace muster::train::hf {

enum class Number { f32, f16, bf16 };

std::int64_t size_of(Number number);               // bytes
std::string_view safetensors_name(Number number);  // F32, F16, BF16
std::string_view torch_name(Number number);        // float32, float16, bfloat16
std::optional<Number> number_of(std::string_view safetensors_name);

// `in` and `out` are of the same number of elements; bytes are little-endian and need no alignment.
void widen(Number number, std::span<const std::byte> in, std::span<float> out);
void narrow(Number number, std::span<const float> in, std::span<std::byte> out);

}  // namespace muster::train::hf
