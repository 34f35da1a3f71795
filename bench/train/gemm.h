// The peak that training is compared with: products of 1024 x 1024 matrices in fp32. One thread.
#pragma once

#include <chrono>

#include "train/tensor.h"

namespace muster::bench {

constexpr double kGemmFlop = 4 * 2.0 * 1024 * 1024 * 1024;

// FLOP/s of four products, on as many threads as at::set_num_threads says.
inline double gemm_rate() {
  static const at::Tensor a = at::randn({1024, 1024}), b = at::randn({1024, 1024});
  static at::Tensor out = at::empty({1024, 1024});
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 4; ++i) at::mm_out(out, a, b);
  return kGemmFlop / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace muster::bench
