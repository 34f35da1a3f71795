#include "train/data/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>

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

namespace {

std::string short_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

}  // namespace

std::string Mixture::wanted_weight() {
  return "a number from " + short_text(kWeightLeast) + " to " + short_text(kWeightMost) +
         " is needed; only the ratios of weights count";
}

Result<Mixture> Mixture::create(const std::vector<double>& weights, std::uint64_t seed) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (can_weigh(weights[i])) continue;
    return fail(ErrorCode::invalid_argument, "weight " + std::to_string(i + 1) + " of the mixture is " +
                                                 short_text(weights[i]) + ": " + wanted_weight());
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::uint64_t> shares;
  std::vector<std::pair<double, std::size_t>> remainders;  // negative, so that the largest sorts first
  for (const double weight : weights) {
    const double exact = weight / sum * static_cast<double>(kBlock);
    shares.push_back(static_cast<std::uint64_t>(exact));
    remainders.emplace_back(std::floor(exact) - exact, remainders.size());
  }
  if (shares.empty()) return fail(ErrorCode::invalid_argument, "a mixture of nothing");
  std::sort(remainders.begin(), remainders.end());
  const auto left = kBlock - std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  for (std::uint64_t i = 0; i < left; ++i) ++shares[remainders[i % remainders.size()].second];
  std::vector<std::uint64_t> first = {0};
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0) {
      return fail(ErrorCode::invalid_argument,
                  "weight " + std::to_string(i + 1) + " of the mixture, " + short_text(weights[i]) + " of " +
                      short_text(sum) + " in all, is less than one sample in " + std::to_string(kBlock) +
                      ": raise it, or leave out what it is for");
    }
    first.push_back(first.back() + shares[i]);
  }
  return Mixture(std::move(first), Rng::mix(seed + 0x6d69780000000000ULL));
}

Mixture::Draw Mixture::draw(std::uint64_t sample) const {
  const auto block = sample / kBlock;
  const auto place = Permutation(kBlock, seed_, block)(sample % kBlock);
  const auto source =
      static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), place) - first_.begin()) - 1;
  return {source, block * share(source) + (place - first_[source])};
}

std::uint64_t Sampler::window(std::uint64_t sample) const {
  return Permutation(windows_, seed_, sample / windows_)(sample % windows_);
}

}  // namespace muster::train
