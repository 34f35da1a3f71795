#include "train/optim/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "train/target_clones.h"

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

}  // namespace

AdamW::AdamW(const ParamTable& table, Dtype dtype, const AdamWOptions& options, std::vector<Range> pieces)
    : table_(&table), options_(options), first_(pieces, wide(dtype)), second_(pieces, wide(dtype)) {
  if (dtype != wide(dtype)) master_.emplace(std::move(pieces), wide(dtype));
  for (const Range& piece : first_.pieces()) static_cast<void>(table.blocks(piece));  // checks the cut
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
    const auto blocks = table_->blocks(piece);
    T* p = weights.as<T>(piece).data();
    const T* g = gradients.as<T>(piece).data();
    T* m = first_.as<T>(piece).data();
    T* v = second_.as<T>(piece).data();
    at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), kBlocksPerTask,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t i = begin; i < end; ++i) {
                         const Range& block = blocks[static_cast<std::size_t>(i)];
                         const Factors<T>& factors =
                             table_->param_at(block.begin).spec->decay ? decayed : plain;
                         const std::int64_t at = block.begin - piece.begin;
                         run_update(p + at, g + at, m + at, v + at, block.size(), factors);
                       }
                     });
  }
}

}  // namespace muster::train
