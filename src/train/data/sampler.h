// Which window of the token stream is sample number i: a permutation of all windows per epoch, without a
// table.
//
// Balanced Feistel network on the next even number of bits, walked until the value is in range (Black and
// Rogaway, Ciphers with Arbitrary Finite Domains, 2002): O(1) memory, a few dozen operations a sample. The
// state of the data is one integer, the samples consumed; it knows nothing of ranks or micro-batches.
//
// Pure; any thread.
#pragma once

#include <cstdint>

namespace muster::train {

// A bijection of [0, size) for each (seed, epoch). size >= 1.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);
  // Precondition: i < size.
  std::uint64_t operator()(std::uint64_t i) const;

 private:
  std::uint64_t once(std::uint64_t value) const;
  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

// Sample i of an endless sequence: epoch i / windows, place i % windows.
class Sampler {
 public:
  Sampler(std::uint64_t windows, std::uint64_t seed) : windows_(windows), seed_(seed) {}
  std::uint64_t window(std::uint64_t sample) const;
  std::uint64_t windows() const { return windows_; }

 private:
  std::uint64_t windows_;
  std::uint64_t seed_;
};

}  // namespace muster::train
