#include "train/optim/gradient_norm.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "base/assert.h"
#include "train/target_clones.h"

namespace muster::train {
namespace {

constexpr std::int64_t kBlocksPerTask = 16;

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

MUSTER_CLONES double run_squares(const float* g, std::int64_t n) { return squares_span(g, n); }
MUSTER_CLONES double run_squares(const double* g, std::int64_t n) { return squares_span(g, n); }

}  // namespace

std::vector<double> block_squares(const ParamTable& table, const FlatBuffer& gradients,
                                  std::span<const Range> pieces) {
  std::vector<double> sums(table.blocks().size());
  const auto square = [&](Range block) {
    return gradients.dtype() == Dtype::f32 ? run_squares(gradients.as<float>(block).data(), block.size())
                                           : run_squares(gradients.as<double>(block).data(), block.size());
  };
  for (const Range& piece : pieces) {
    const auto blocks = table.blocks(piece);
    double* out = sums.data() + (blocks.data() - table.blocks().data());
    at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), kBlocksPerTask,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t i = begin; i < end; ++i) {
                         const Range& block = blocks[static_cast<std::size_t>(i)];
                         if (table.owns(table.param_at(block.begin))) out[i] = square(block);
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
