// The GEMM peak of one process, when it is asked for: what is left of it when several are asked at once is
// this machine's ceiling for ranks that share it.
//   bench_gemm [THREADS]     for each line of stdin, a number of seconds: GFLOP/s over that time, the median
#include "bench/train/gemm.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/support/summary.h"
#include "train/determinism.h"

int main(int argc, char** argv) {
  namespace bench = muster::bench;
  using Clock = std::chrono::steady_clock;
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  muster::train::fix_gemm_path();
  const at::NoGradGuard no_grad;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads < 1) {
    std::fprintf(stderr, "THREADS must be at least 1\n");
    return 2;
  }
  at::set_num_threads(threads);
  bench::gemm_rate();
  std::printf("ready\n");
  double seconds = 0;
  while (std::scanf("%lf", &seconds) == 1) {
    std::vector<double> rates;
    const auto start = Clock::now();
    do {
      rates.push_back(bench::gemm_rate() / 1e9);
    } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
    std::printf("%.2f\n", bench::summarize(rates).median);
  }
  return 0;
}
