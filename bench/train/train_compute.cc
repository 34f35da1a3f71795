// Tokens per second of one rank's training step (forward, backward, norm, clip, AdamW; no communication) and
// its share of the GEMM peak, measured in alternation in the same process: a round is one large product, some
// steps, and so on, so that a busy machine or a changed clock falls on both. Medians over the
// rounds, with quartiles.
//
//   bench_train_compute [PRESET [ROWS [ROUNDS [THREADS... [bf16]]]]]     default: bench 4 12 1 2, in fp32
//
// FLOP of a token: 6 x matrix parameters + attention counted in full (not halved for the causal mask).
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/rng.h"
#include "bench/support/summary.h"
#include "bench/train/gemm.h"
#include "train/determinism.h"
#include "train/model/flops.h"
#include "train/model/model.h"
#include "train/optim/adamw.h"
#include "train/optim/gradient_norm.h"
#include "train/tensor.h"

namespace {

using namespace muster;
using namespace muster::train;
using Clock = std::chrono::steady_clock;

// CPU seconds of the calling thread: what a busy machine distorts least. Of one thread only.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) { return bench::summarize(std::move(values)).median; }

class Trainer {
 public:
  Trainer(const ModelConfig& config, std::int64_t rows, Dtype dtype)
      : model_(Model::create(config, {.dtype = dtype}).value()),
        optimizer_(model_.table(), dtype, {}),
        rows_(rows),
        sequence_(config.max_sequence) {
    init_parameters(model_.table(), optimizer_.weights(model_.parameters()), 1);
    optimizer_.round_into(model_.parameters());
    Rng rng(1);
    for (std::int64_t i = 0; i < tokens_a_step(); ++i) {
      tokens_.push_back(rng.between(0, config.vocab - 1));
      targets_.push_back(rng.between(0, config.vocab - 1));
    }
  }

  std::int64_t tokens_a_step() const { return rows_ * sequence_; }
  const ParamTable& table() const { return model_.table(); }

  struct Times {
    double compute, update;
  };
  Times step() {
    const auto start = Clock::now();
    model_.start_accumulation();
    const StepResult result = model_.forward_backward({tokens_, targets_, rows_, sequence_}).value();
    const double compute = seconds_since(start);
    const double scale = gradient_scale(global_norm(model_.table(), model_.gradients()), result.tokens, 1.0);
    optimizer_.step(model_.parameters(), model_.gradients(), 3e-4, scale);
    return {compute, seconds_since(start) - compute};
  }

 private:
  Model model_;
  AdamW optimizer_;
  std::int64_t rows_, sequence_;
  std::vector<std::int64_t> tokens_, targets_;
};

void measure(Trainer& trainer, int threads, int rounds) {
  at::set_num_threads(threads);
  trainer.step();
  bench::gemm_rate();
  std::vector<double> seconds, updates, peaks, cpu_of_step, cpu_of_gemm, rates, shares;
  const auto tokens = static_cast<double>(trainer.tokens_a_step());
  const double flop = flop_per_token(trainer.table().config(), trainer.table().config().max_sequence).whole;
  for (int round = 0; round < rounds; ++round) {
    const double begin = cpu_seconds();
    peaks.push_back(bench::gemm_rate());
    const double middle = cpu_seconds();
    const auto times = trainer.step();
    cpu_of_gemm.push_back(middle - begin);
    cpu_of_step.push_back(cpu_seconds() - middle);
    seconds.push_back(times.compute + times.update);
    updates.push_back(times.update);
    rates.push_back(tokens / seconds.back());
    shares.push_back(100 * rates.back() * flop / peaks.back());
  }
  const double rate = median(rates), peak = median(peaks);
  std::printf(
      "threads %d  %s tokens/s  %.1f of %.1f GFLOP/s  %s %% of the peak beside it  step %.1f ms, of it norm "
      "and "
      "AdamW %.1f ms\n",
      threads, to_string(bench::summarize(rates), 0).c_str(), rate * flop / 1e9, peak / 1e9,
      to_string(bench::summarize(shares)).c_str(), 1e3 * median(seconds), 1e3 * median(updates));
  if (threads == 1) {
    const double cpu_rate = tokens * flop / median(cpu_of_step),
                 cpu_peak = bench::kGemmFlop / median(cpu_of_gemm);
    std::printf("           by CPU time: %6.1f of %6.1f GFLOP/s  %5.1f %% of peak\n", cpu_rate / 1e9,
                cpu_peak / 1e9, 100 * cpu_rate / cpu_peak);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string path = fix_gemm_path();
  const at::NoGradGuard no_grad;
  const std::string name = argc > 1 ? argv[1] : "bench";
  const auto config = preset(name);
  if (!config) {
    std::fprintf(stderr, "%s\n", config.error().message.c_str());
    return 2;
  }
  const std::int64_t rows = argc > 2 ? std::atol(argv[2]) : 4;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 12;
  std::vector<int> threads;
  Dtype dtype = Dtype::f32;
  if (argc > 4 && argv[argc - 1] == std::string_view("bf16")) {
    dtype = Dtype::bf16;
    --argc;
  }
  for (int i = 4; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty()) threads = {1, 2};
  if (rows < 1 || rounds < 1 || std::ranges::min(threads) < 1) {
    std::fprintf(stderr, "rows, rounds and threads must be at least 1\n");
    return 2;
  }
  std::printf("%s\n", bench::describe_machine().c_str());
  Trainer trainer(*config, rows, dtype);
  std::printf("%s in %s: %.2f M parameters, %ld x %ld tokens a step, %.1f MFLOP a token, MKL_CBWR=%s\n",
              name.c_str(), dtype == Dtype::bf16 ? "bf16" : "fp32",
              static_cast<double>(trainer.table().numel()) / 1e6, static_cast<long>(rows),
              static_cast<long>(config->max_sequence),
              flop_per_token(*config, config->max_sequence).whole / 1e6, path.c_str());
  for (const int count : threads) measure(trainer, count, rounds);
  return 0;
}
