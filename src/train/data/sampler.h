// Which window of the token stream is sample number i: a permutation of all windows per epoch, without a
// table.
//
// Balanced Feistel network on the next even number of bits, walked until the value is in range (Black and
// Rogaway, Ciphers with Arbitrary Finite Domains, 2002): O(1) memory, a few dozen operations a sample. The
// state of the data is one integer, the samples consumed; it knows nothing of ranks or micro-batches. A
// Mixture says which of several sources a sample comes from, in the same way.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

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

// Which source sample i of an endless sequence comes from, by weight. Of each run of kBlock samples every
// source gets its share to the sample, in an order drawn anew for each run; so where a source stands needs no
// counting: O(log sources), and the state stays the one integer.
class Mixture {
 public:
  static constexpr std::uint64_t kBlock = 65'536;

  // Only their ratios count, so these limits leave room for any; no sum of weights overflows.
  static constexpr double kWeightLeast = 1e-15, kWeightMost = 1e15;
  static bool can_weigh(double weight) { return weight >= kWeightLeast && weight <= kWeightMost; }  // no NaN
  static std::string wanted_weight();  // these limits, for messages

  // Weights need not add up to 1. invalid_argument: one is not within the limits, or its share is below one
  // in kBlock; the message names its place among them.
  static Result<Mixture> create(const std::vector<double>& weights, std::uint64_t seed);

  struct Draw {
    std::size_t source = 0;
    std::uint64_t index = 0;  // among the samples of this source: each comes once
  };
  Draw draw(std::uint64_t sample) const;
  // Samples of each source in a run of kBlock.
  std::uint64_t share(std::size_t source) const { return first_[source + 1] - first_[source]; }

 private:
  Mixture(std::vector<std::uint64_t> first, std::uint64_t seed) : first_(std::move(first)), seed_(seed) {}
  std::vector<std::uint64_t> first_;  // of each source in a run, before it is permuted; then kBlock
  std::uint64_t seed_;
};

}  // namespace muster::train
