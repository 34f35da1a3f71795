// The first act of a program that trains: fix the code path of the GEMMs, so that the same work gives the
// same bits.
//
// MKL reads MKL_CBWR once, at its first call, so this must run before any tensor operation and before any
// thread starts (it sets an environment variable). Measured on a CPU without AVX-512 (AMD Zen 3): AVX2,STRICT
// is honoured there and costs nothing, and of 3,000 fp32 products 18 differed from their halves, all with
// fewer than 4 rows a half: seen in that run, no promise. COMPATIBLE runs at a third of the speed.
// docs/adr/0022-bitwise-gemm.md has the numbers.
#pragma once

#include <cstdlib>
#include <string>

namespace muster::train {

// Sets MKL_CBWR for this CPU unless the caller's environment already does. Answers what is in force: stored
// in every checkpoint; a resume under another value is not bitwise.
inline std::string fix_gemm_path() {
  const char* best = "COMPATIBLE";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = "AVX2,STRICT";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    best = "AVX512,STRICT";
  }
  ::setenv("MKL_CBWR", best, 0);
  const char* chosen = std::getenv("MKL_CBWR");
  return chosen == nullptr ? "" : chosen;
}

}  // namespace muster::train
