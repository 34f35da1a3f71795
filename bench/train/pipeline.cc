// A training step over two pipeline stages beside its schedule, simulated with the times that the same step's
// operations took: what the executor and the exchanges add. The stages are two threads of this process, each
// with one thread of computation, that talk by gloo over loopback; the model is that of width 512, each
// micro-batch 4 x 256 tokens. What a message costs is measured between idle stages.
//
//   bench_pipeline [MICROS [ROUNDS]]     default: 8 15
#include "train/pipeline/pipeline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "bench/support/summary.h"
#include "train/comm/gloo/gloo.h"
#include "train/determinism.h"
#include "train/model/flops.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kStages = 2;
constexpr std::int64_t kRows = 4;

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

// One stage and its part of the model.
class Stage {
 public:
  static Result<Stage> create(const ModelConfig& config, Range layers, std::uint16_t port, int rank) {
    MUSTER_TRY(auto transport, gloo_transport({.store_host = "127.0.0.1",
                                               .store_port = port,
                                               .prefix = "bench",
                                               .address = "127.0.0.1",
                                               .rank = rank,
                                               .size = kStages}));
    MUSTER_TRY(auto model, Model::create(config, {.layers = layers}));
    return Stage(std::make_unique<Comm>("stages", std::move(transport)), std::move(model));
  }

  // How long a message of the stream's size takes from the first stage to the second, in ms.
  Result<double> message() {
    const ModelConfig& config = model_.table().config();
    std::vector<float> data(static_cast<std::size_t>(kRows * config.max_sequence * config.width));
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) {
      MUSTER_CHECK(stages_->barrier());
      const auto start = Clock::now();
      const Send send{.to = 1, .data = std::as_bytes(std::span(data))};
      const Receive receive{.from = 0, .data = std::as_writable_bytes(std::span(data))};
      if (stages_->rank() == 0) {
        MUSTER_CHECK(stages_->exchange({&send, 1}, {}));
      } else {
        MUSTER_CHECK(stages_->exchange({}, {&receive, 1}));
      }
      times.push_back(milliseconds(Clock::now() - start));
    }
    return bench::summarize(times).median;
  }

  // One step; when each of its operations ran.
  Result<std::vector<StepTime>> step(PipelineSchedule schedule, std::span<const Batch> micros) {
    Pipeline pipeline(model_, stages_.get(), schedule);
    std::vector<StepTime> times;
    pipeline.observe([&](const StepTime& time) { times.push_back(time); });
    model_.start_accumulation();
    MUSTER_CHECK(stages_->barrier());
    if (const auto done = pipeline.run(micros); !done) {  // the other would wait for its time-out
      std::fprintf(stderr, "stage %d: %s\n", stages_->rank(), done.error().message.c_str());
      std::_Exit(1);
    }
    return times;
  }

  void init() { model_.init_parameters(1); }

 private:
  Stage(std::unique_ptr<Comm> stages, Model model) : stages_(std::move(stages)), model_(std::move(model)) {}
  std::unique_ptr<Comm> stages_;
  Model model_;
};

// The same on both stages at once, each on a thread of its own.
template <typename Function>
auto on_both(Function function) {
  std::array<std::optional<decltype(function(0))>, kStages> results;
  std::thread second([&] {
    at::set_num_threads(1);
    results[1] = function(1);
  });
  at::set_num_threads(1);
  results[0] = function(0);
  second.join();
  return results;
}

struct Measured {
  double makespan = 0, simulated = 0;  // ms
  std::array<double, kStages> busy{};  // ms in forwards and backwards
};

Measured evaluate(PipelineSchedule schedule, int micros,
                  const std::array<std::vector<StepTime>, kStages>& times, double message) {
  const auto first = std::ranges::min(times[0].front().begin, times[1].front().begin);
  const auto last = std::ranges::max(times[0].back().end, times[1].back().end);
  const auto cost = [&](int stage, const StageStep& step) {
    const auto found = std::ranges::find(times[static_cast<std::size_t>(stage)], step, &StepTime::step);
    return milliseconds(found->end - found->begin);
  };
  Measured result{.makespan = milliseconds(last - first),
                  .simulated = makespan(schedule, kStages, micros, cost, message)};
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    for (const StepTime& time : times[stage]) result.busy[stage] += milliseconds(time.end - time.begin);
  }
  return result;
}

Result<void> measure(PipelineSchedule schedule, std::vector<Stage>& stages, std::span<const Batch> micros,
                     int rounds, double message) {
  std::vector<double> whole, simulated, without, waits;
  for (int round = -1; round < rounds; ++round) {
    auto results =
        on_both([&](int stage) { return stages[static_cast<std::size_t>(stage)].step(schedule, micros); });
    std::array<std::vector<StepTime>, kStages> times;
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      MUSTER_TRY(times[stage], std::move(*results[stage]));
    }
    if (round < 0) continue;  // touches its memory
    const int count = static_cast<int>(micros.size());
    const Measured m = evaluate(schedule, count, times, message);
    whole.push_back(m.makespan);
    simulated.push_back(m.simulated);
    without.push_back(evaluate(schedule, count, times, 0).simulated);
    waits.push_back(100 * (1 - (m.busy[0] + m.busy[1]) / (kStages * m.makespan)));
  }
  std::printf(
      "%-5s %zu micro-batches: makespan %s ms, simulated %s ms, ratio %s (messages free: %s); stages wait %s "
      "%%\n",
      std::string(to_string(schedule)).c_str(), micros.size(), to_string(bench::summarize(whole), 0).c_str(),
      to_string(bench::summarize(simulated), 0).c_str(),
      to_string(bench::summarize_ratio(whole, simulated), 4).c_str(),
      to_string(bench::summarize_ratio(whole, without), 4).c_str(),
      to_string(bench::summarize(waits)).c_str());
  return {};
}

Result<void> run(int micro_batches, int rounds) {
  MUSTER_TRY(const ModelConfig config, preset("bench"));
  const FlopPerToken flop = flop_per_token(config, config.max_sequence);
  const std::vector<double> costs(static_cast<std::size_t>(config.layers), flop.layer);
  MUSTER_TRY(const auto layers, balance_layers(costs, 0, flop.head, kStages));
  MUSTER_TRY(auto listener, listen_for_store("127.0.0.1", 0));
  MUSTER_TRY(const auto store, start_store("127.0.0.1", std::move(listener)));
  auto made = on_both([&](int rank) {
    return Stage::create(config, layers[static_cast<std::size_t>(rank)], store->port(), rank);
  });
  std::vector<Stage> stages;
  for (auto& stage : made) {
    if (!*stage) return tl::unexpected(stage->error());
    stages.push_back(std::move(**stage));
    stages.back().init();
  }
  const auto messages = on_both([&](int stage) { return stages[static_cast<std::size_t>(stage)].message(); });
  for (const auto& message : messages) MUSTER_CHECK(*message);
  const double message = std::max(**messages[0], **messages[1]);
  std::printf("layers %ld and %ld; a message takes %.2f ms\n", static_cast<long>(layers[0].size()),
              static_cast<long>(layers[1].size()), message);
  Rng rng(1);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(kRows * config.max_sequence));
  for (auto& token : tokens) token = rng.between(0, config.vocab - 1);
  const std::vector<Batch> micros(
      static_cast<std::size_t>(micro_batches),
      Batch{.tokens = tokens, .targets = tokens, .rows = kRows, .sequence = config.max_sequence});
  for (const auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b})
    MUSTER_CHECK(measure(schedule, stages, micros, rounds, message));
  return {};
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  muster::train::fix_gemm_path();
  const int micros = argc > 1 ? std::atoi(argv[1]) : 8, rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (micros < 1 || rounds < 1) {
    std::fprintf(stderr, "MICROS and ROUNDS must be at least 1\n");
    return 2;
  }
  std::printf("%s\n", muster::bench::describe_machine().c_str());
  const auto done = muster::train::run(micros, rounds);
  if (done) return 0;
  std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return 1;
}
