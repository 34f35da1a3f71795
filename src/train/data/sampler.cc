#include "train/data/sampler.h"

#include <bit>

#include "base/assert.h"
#include "base/rng.h"

namespace muster::train {

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(size), key_(Rng::mix(Rng::mix(seed + 0x9e3779b97f4a7c15ULL) + epoch)) {
  MUSTER_ASSERT(size >= 1);
  const int bits = static_cast<int>(std::bit_width(size - 1));
  half_bits_ = bits <= 2 ? 1 : (bits + 1) / 2;
}

std::uint64_t Permutation::once(std::uint64_t value) const {
  const std::uint64_t mask = (1ULL << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (std::uint64_t round = 0; round < 6; ++round) {
    const std::uint64_t mixed = Rng::mix(key_ ^ (right + (round << 56)));
    const std::uint64_t next = left ^ ((mixed >> 32) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  MUSTER_ASSERT(i < size_);
  do {
    i = once(i);
  } while (i >= size_);  // the domain is at most four times the range
  return i;
}

std::uint64_t Sampler::window(std::uint64_t sample) const {
  return Permutation(windows_, seed_, sample / windows_)(sample % windows_);
}

}  // namespace muster::train
