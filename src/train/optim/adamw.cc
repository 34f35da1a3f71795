#include "train/optim/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/assert.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define MUSTER_CLONES
#else
#define MUSTER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

namespace muster::train {
namespace {

constexpr std::int64_t kBlocksPerTask = 16;

// The numbers of one update that are the same for all elements of a decay group.
template <typename T>
struct Factors {
  T scale, keep, beta1, beta2, new1, new2, step_size, inverse_root_correction, eps;
};

template <typename T>
[[gnu::always_inline]] inline void update_span(T* p, const T* g, T* m, T* v, std::int64_t count,
                                               const Factors<T>& f) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * f.scale;
    m[i] = f.beta1 * m[i] + f.new1 * gradient;
    v[i] = f.beta2 * v[i] + f.new2 * gradient * gradient;
    const T denominator = std::sqrt(v[i]) * f.inverse_root_correction + f.eps;
    p[i] = p[i] * f.keep - f.step_size * m[i] / denominator;
  }
}

// Eight running sums in fp64, added in order: the same on every thread count and, but for the CPU's own
// width, layout.
template <typename T>
[[gnu::always_inline]] inline double squares_span(const T* g, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  double lane[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const double x = static_cast<double>(g[i + l]);
      lane[l] += x * x;
    }
  }
  for (; i < count; ++i) lane[0] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  double sum = 0;
  for (const double x : lane) sum += x;
  return sum;
}

MUSTER_CLONES void run_update(float* p, const float* g, float* m, float* v, std::int64_t n,
                              const Factors<float>& f) {
  update_span(p, g, m, v, n, f);
}
MUSTER_CLONES void run_update(double* p, const double* g, double* m, double* v, std::int64_t n,
                              const Factors<double>& f) {
  update_span(p, g, m, v, n, f);
}
MUSTER_CLONES void run_round(const float* from, BFloat16* to, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] = BFloat16(from[i]);
}
MUSTER_CLONES double run_squares(const float* g, std::int64_t n) { return squares_span(g, n); }
MUSTER_CLONES double run_squares(const double* g, std::int64_t n) { return squares_span(g, n); }

// The blocks of the table inside `range`, whose ends must be block ends.
std::span<const Range> blocks_in(const ParamTable& table, Range range) {
  const auto blocks = table.blocks();
  const auto first = std::ranges::lower_bound(blocks, range.begin, {}, &Range::begin);
  const auto last = std::ranges::lower_bound(blocks, range.end, {}, &Range::begin);
  MUSTER_ASSERT(range.size() == 0 || (first != blocks.end() && first->begin == range.begin));
  MUSTER_ASSERT(range.size() == 0 || std::prev(last)->end == range.end);
  return {first, last};
}

const Param& param_of(const ParamTable& table, const Range& block) {
  return *(std::ranges::upper_bound(table.params(), block.begin, {}, &Param::offset) - 1);
}

}  // namespace

AdamW::AdamW(const ParamTable& table, Dtype dtype, const AdamWOptions& options, std::vector<Range> pieces)
    : table_(&table), options_(options), first_(pieces, wide(dtype)), second_(pieces, wide(dtype)) {
  if (dtype != wide(dtype)) master_.emplace(std::move(pieces), wide(dtype));
  for (const Range& piece : first_.pieces()) static_cast<void>(blocks_in(table, piece));  // checks the cut
}

void AdamW::step(FlatBuffer& parameters, const FlatBuffer& gradients, double learning_rate,
                 double gradient_scale) {
  ++steps_;
  if (first_.dtype() == Dtype::f32) {
    update<float>(weights(parameters), gradients, learning_rate, gradient_scale);
  } else {
    update<double>(weights(parameters), gradients, learning_rate, gradient_scale);
  }
  round_into(parameters);
}

void AdamW::round_into(FlatBuffer& parameters) const {
  if (!master_) return;
  for (const Range& piece : master_->pieces()) {
    const float* from = master_->as<float>(piece).data();
    BFloat16* to = parameters.as<BFloat16>(piece).data();
    at::parallel_for(
        0, piece.size(), kBlocksPerTask * ParamTable::kBlock,
        [&](std::int64_t begin, std::int64_t end) { run_round(from + begin, to + begin, end - begin); });
  }
}

template <typename T>
void AdamW::update(FlatBuffer& weights, const FlatBuffer& gradients, double learning_rate,
                   double gradient_scale) {
  const double correction1 = 1 - std::pow(options_.beta1, static_cast<double>(steps_));
  const double correction2 = 1 - std::pow(options_.beta2, static_cast<double>(steps_));
  Factors<T> plain{.scale = static_cast<T>(gradient_scale),
                   .keep = 1,
                   .beta1 = static_cast<T>(options_.beta1),
                   .beta2 = static_cast<T>(options_.beta2),
                   .new1 = static_cast<T>(1 - options_.beta1),
                   .new2 = static_cast<T>(1 - options_.beta2),
                   .step_size = static_cast<T>(learning_rate / correction1),
                   .inverse_root_correction = static_cast<T>(1 / std::sqrt(correction2)),
                   .eps = static_cast<T>(options_.eps)};
  Factors<T> decayed = plain;
  decayed.keep = static_cast<T>(1 - learning_rate * options_.weight_decay);

  for (const Range& piece : first_.pieces()) {
    const auto blocks = blocks_in(*table_, piece);
    T* p = weights.as<T>(piece).data();
    const T* g = gradients.as<T>(piece).data();
    T* m = first_.as<T>(piece).data();
    T* v = second_.as<T>(piece).data();
    at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), kBlocksPerTask,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t i = begin; i < end; ++i) {
                         const Range& block = blocks[static_cast<std::size_t>(i)];
                         const Factors<T>& factors = param_of(*table_, block).spec->decay ? decayed : plain;
                         const std::int64_t at = block.begin - piece.begin;
                         run_update(p + at, g + at, m + at, v + at, block.size(), factors);
                       }
                     });
  }
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double low = peak * final_ratio;
  if (step >= steps) return low;
  const double part =
      static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(steps - warmup, 1));
  return low + (peak - low) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

std::vector<double> block_squares(const ParamTable& table, const FlatBuffer& gradients,
                                  std::span<const Range> pieces) {
  std::vector<double> sums(table.blocks().size());
  const auto square = [&](Range block) {
    return gradients.dtype() == Dtype::f32 ? run_squares(gradients.as<float>(block).data(), block.size())
                                           : run_squares(gradients.as<double>(block).data(), block.size());
  };
  for (const Range& piece : pieces) {
    const auto blocks = blocks_in(table, piece);
    double* out = sums.data() + (blocks.data() - table.blocks().data());
    at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), kBlocksPerTask,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t i = begin; i < end; ++i) {
                         const Range& block = blocks[static_cast<std::size_t>(i)];
                         if (table.owns(param_of(table, block))) out[i] = square(block);
                       }
                     });
  }
  return sums;
}

double ordered_sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

double global_norm(const ParamTable& table, const FlatBuffer& gradients) {
  const Range all{0, table.numel()};
  return std::sqrt(ordered_sum(block_squares(table, gradients, {&all, 1})));
}

double gradient_scale(double norm_of_sum, std::int64_t tokens, double norm_max) {
  MUSTER_ASSERT(tokens >= 1);
  const double mean = 1.0 / static_cast<double>(tokens);
  const double norm = norm_of_sum * mean;
  return norm_max > 0 && norm > norm_max ? mean * (norm_max / norm) : mean;
}

}  // namespace muster::train
