// A small deterministic generator: the same seed gives the same numbers on every machine and compiler.
//
// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). For simulations,
// jitter and weight initialisation; never for secrets (base/crypto.h has random_bytes). One thread at a time.
#pragma once

#include <cstdint>

#include "base/assert.h"

namespace muster {

class Rng {
 public:
  explicit constexpr Rng(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    return mix(state_);
  }

  // Uniform in [0, bound); bound >= 1. By 128-bit multiplication: the bias is below 2^-64 * bound.
  constexpr std::uint64_t below(std::uint64_t bound) {
    MUSTER_ASSERT(bound >= 1);
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }

  // Uniform in [low, high], both included.
  constexpr std::int64_t between(std::int64_t low, std::int64_t high) {
    MUSTER_ASSERT(low <= high);
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }

  // Uniform in [0, 1), 53 bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  constexpr bool chance(double probability) { return uniform() < probability; }

  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

}  // namespace muster
