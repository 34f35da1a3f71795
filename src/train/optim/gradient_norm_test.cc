#include "train/optim/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/optim/test_buffers.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

TEST(GradientNorm, IsTheSameForEveryCut) {
  const ParamTable table = table_of();
  const FlatBuffer g = random_buffer<float>(table.numel(), 3);
  const double whole = global_norm(table, g);
  for (const std::size_t cut : {1U, 2U, 7U, 20U}) {
    const std::int64_t at = table.blocks()[cut].begin;
    const Range first{0, at}, rest{at, table.numel()};
    std::vector<double> sums = block_squares(table, g, {&first, 1});
    const std::vector<double> others = block_squares(table, g, {&rest, 1});
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += others[i];
    EXPECT_EQ(std::sqrt(ordered_sum(sums)), whole) << cut;
  }
  double squares = 0;
  for (const float x : g.as<float>()) squares += static_cast<double>(x) * static_cast<double>(x);
  EXPECT_NEAR(whole, std::sqrt(squares), 1e-12 * whole);
}

TEST(GradientNorm, ThreadsDoNotChangeBits) {
  const ParamTable table = table_of(4000);
  const FlatBuffer g = random_buffer<float>(table.numel(), 4);
  const auto norm = [&](int threads) {
    at::set_num_threads(threads);
    return global_norm(table, g);
  };
  const double one = norm(1), three = norm(3);
  at::set_num_threads(1);
  EXPECT_EQ(one, three);
}

TEST(GradientNorm, ScaleDividesByTokensAndClips) {
  EXPECT_DOUBLE_EQ(gradient_scale(10, 100, 1.0), 0.01);       // mean norm 0.1
  EXPECT_DOUBLE_EQ(gradient_scale(500, 100, 1.0), 0.01 / 5);  // mean norm 5
  EXPECT_DOUBLE_EQ(gradient_scale(500, 100, 0), 0.01);        // no clipping
}

}  // namespace
}  // namespace muster::train
