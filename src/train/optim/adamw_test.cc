#include "train/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/optim/test_buffers.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

// The formula as the paper prints it, one element at a time.
TEST(AdamW, FollowsTheFormula) {
  const ParamTable table = table_of();
  FlatBuffer p = random_buffer<double>(table.numel(), 1);
  FlatBuffer expected = random_buffer<double>(table.numel(), 1);
  std::vector<double> m(static_cast<std::size_t>(table.numel())), v(m.size());
  const AdamWOptions o{.weight_decay = 0.3};
  AdamW optimizer(table, Dtype::f64, o);
  for (int t = 1; t <= 3; ++t) {
    const FlatBuffer g = random_buffer<double>(table.numel(), static_cast<std::uint64_t>(10 + t));
    const double rate = 0.01 / t, scale = 0.5;
    optimizer.step(p, g, rate, scale);
    for (const Param& param : table.params()) {
      for (auto i = static_cast<std::size_t>(param.offset);
           i < static_cast<std::size_t>(param.offset + param.numel); ++i) {
        double& x = expected.as<double>()[i];
        const double gradient = g.as<double>()[i] * scale;
        if (param.shape.size() == 2) x -= rate * o.weight_decay * x;
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * gradient;
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * gradient * gradient;
        x -= rate * (m[i] / (1 - std::pow(o.beta1, t))) /
             (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps);
        ASSERT_NEAR(p.as<double>()[i], x, 1e-13) << param.name << " step " << t;
      }
    }
  }
  EXPECT_EQ(optimizer.steps(), 3);
}

TEST(AdamW, PartsGiveTheBitsOfTheWhole) {
  const ParamTable table = table_of();
  FlatBuffer whole = random_buffer<float>(table.numel(), 1);
  FlatBuffer parts = random_buffer<float>(table.numel(), 1);
  const std::int64_t cut = table.blocks()[2].begin, second = table.blocks()[9].begin;
  AdamW one(table, Dtype::f32, {});
  AdamW a(table, Dtype::f32, {}, {{0, cut}, {second, table.numel()}}),
      b(table, Dtype::f32, {}, {{cut, second}}), none(table, Dtype::f32, {}, {{cut, cut}});
  for (std::uint64_t t = 0; t < 3; ++t) {
    const FlatBuffer g = random_buffer<float>(table.numel(), 20 + t);
    one.step(whole, g, 0.01, 1);
    for (AdamW* part : {&none, &b, &a}) part->step(parts, g, 0.01, 1);
  }
  EXPECT_TRUE(same_bytes(whole, parts));
}

// Parameters in bf16 follow those of fp32, rounded, and in the other pieces stay as they are.
TEST(AdamW, OfBf16IsThatOfFp32Rounded) {
  const ParamTable table = table_of();
  FlatBuffer exact = random_buffer<float>(table.numel(), 1);
  FlatBuffer parameters(table.numel(), Dtype::bf16);
  const Range piece{table.blocks()[2].begin, table.blocks()[9].begin};
  AdamW one(table, Dtype::f32, {}, {piece}), narrow(table, Dtype::bf16, {}, {piece});
  std::ranges::copy(exact.as<float>(piece), narrow.weights(parameters).as<float>(piece).begin());
  for (std::uint64_t t = 0; t < 3; ++t) {
    const FlatBuffer g = random_buffer<float>(table.numel(), 20 + t);
    one.step(exact, g, 1e-5, 1);
    narrow.step(parameters, g, 1e-5, 1);
  }
  const auto master = narrow.weights(parameters).as<float>(piece), wanted = exact.as<float>(piece);
  for (std::int64_t i = 0; i < table.numel(); ++i) {
    const BFloat16 got = parameters.as<BFloat16>()[static_cast<std::size_t>(i)];
    if (i < piece.begin || i >= piece.end) {
      ASSERT_EQ(got.bits, 0) << i;
      continue;
    }
    const auto at = static_cast<std::size_t>(i - piece.begin);
    ASSERT_EQ(master[at], wanted[at]) << i;
    ASSERT_EQ(got.bits, BFloat16(wanted[at]).bits) << i;
  }
}

TEST(AdamW, ThreadsDoNotChangeBits) {
  const ParamTable table = table_of(4000);
  const FlatBuffer g = random_buffer<float>(table.numel(), 4);
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    FlatBuffer p = random_buffer<float>(table.numel(), 1);
    AdamW optimizer(table, Dtype::f32, {});
    optimizer.step(p, g, 0.01, 1.0);
    return p;
  };
  const FlatBuffer one = run(1), three = run(3);
  at::set_num_threads(1);
  EXPECT_TRUE(same_bytes(one, three));
}

TEST(AdamWDeathTest, RangeMustBeCutAtBlocks) {
  const ParamTable table = table_of();
  EXPECT_DEATH(AdamW(table, Dtype::f32, {}, {{0, 100}}), "");
}

}  // namespace
}  // namespace muster::train
