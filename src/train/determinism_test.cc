// Rule 1 of bitwise training: with the GEMM path fixed, a product on half of the rows is half of the product.
// Its own program, because MKL reads its setting once.
#include "train/determinism.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

const std::string kPath = fix_gemm_path();  // before main

TEST(Determinism, HalfOfTheRowsIsHalfOfTheProduct) {
  ASSERT_TRUE(kPath.ends_with(",STRICT") || kPath == "COMPATIBLE") << kPath;
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  Rng rng(1);
  for (int i = 0; i < 60; ++i) {
    const std::int64_t half = rng.between(4, 300), k = rng.between(1, 700), n = rng.between(2, 700);
    at::set_num_threads(i % 2 == 0 ? 1 : 2);
    const at::Tensor x = at::randn({2 * half, k});
    const at::Tensor w = i % 4 < 2 ? at::randn({n, k}).t() : at::randn({k, n});
    const at::Tensor whole = x.mm(w);
    for (const std::int64_t begin : {std::int64_t{0}, half}) {
      ASSERT_TRUE(at::equal(x.narrow(0, begin, half).mm(w), whole.narrow(0, begin, half)))
          << "rows " << half << " k " << k << " n " << n << " under " << kPath;
    }
  }
}

// Memory that a rank gets from elsewhere must not change the sums.
TEST(Determinism, AlignmentDoesNotShow) {
  const at::NoGradGuard no_grad;
  at::manual_seed(2);
  at::set_num_threads(1);
  for (const std::int64_t k : {64, 96, 256, 700}) {
    const at::Tensor x = at::randn({128, k}), w = at::randn({192, k});
    const at::Tensor expected = x.mm(w.t());
    for (const std::int64_t shift : {1, 3, 8}) {
      const at::Tensor moved = at::empty({128 * k + shift}).narrow(0, shift, 128 * k).view({128, k});
      moved.copy_(x);
      ASSERT_TRUE(at::equal(moved.mm(w.t()), expected)) << "k " << k << " moved by " << shift << " elements";
    }
  }
}

TEST(Determinism, TheCallersSettingWins) {
  ::setenv("MKL_CBWR", "COMPATIBLE", 1);
  EXPECT_EQ(fix_gemm_path(), "COMPATIBLE");
  ::unsetenv("MKL_CBWR");
  EXPECT_EQ(fix_gemm_path(), kPath);
}

}  // namespace
}  // namespace muster::train
