#include "train/pipeline/schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/assert.h"

namespace muster::train {

Result<PipelineSchedule> parse_schedule(std::string_view name) {
  if (name == "gpipe") return PipelineSchedule::gpipe;
  if (name == "1f1b") return PipelineSchedule::one_f_one_b;
  return fail(ErrorCode::invalid_argument,
              "pipeline schedule \"" + std::string(name) + "\" does not exist; there are gpipe and 1f1b");
}

std::string_view to_string(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::gpipe ? "gpipe" : "1f1b";
}

std::vector<StageStep> stage_steps(PipelineSchedule schedule, int stage, int stages, int micros) {
  MUSTER_ASSERT(0 <= stage && stage < stages && micros >= 1);
  const int ahead = schedule == PipelineSchedule::gpipe ? micros : std::min(stages - stage - 1, micros);
  std::vector<StageStep> steps;
  for (int micro = 0; micro < ahead; ++micro) steps.push_back({true, micro});
  for (int micro = ahead; micro < micros; ++micro) {
    steps.push_back({true, micro});
    steps.push_back({false, micro - ahead});
  }
  for (int micro = micros - ahead; micro < micros; ++micro) steps.push_back({false, micro});
  return steps;
}

int level_of(PipelineSchedule schedule, int stage, int stages, int micros, const StageStep& step) {
  const auto steps = stage_steps(schedule, stage, stages, micros);
  const auto found = std::ranges::find(steps, step);
  MUSTER_ASSERT(found != steps.end());
  return static_cast<int>(found - steps.begin());
}

int in_flight_max(PipelineSchedule schedule, int stage, int stages, int micros) {
  int now = 0, most = 0;
  for (const StageStep& step : stage_steps(schedule, stage, stages, micros)) {
    now += step.forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

double makespan(PipelineSchedule schedule, int stages, int micros, const StepCost& cost, double transfer) {
  constexpr double kNotYet = -1;
  const auto at = [&](int stage, int micro) { return static_cast<std::size_t>(stage * micros + micro); };
  std::vector<double> forward(at(stages, 0), kNotYet), backward = forward;  // when each ends
  std::vector<std::vector<StageStep>> steps;
  for (int stage = 0; stage < stages; ++stage) steps.push_back(stage_steps(schedule, stage, stages, micros));
  std::vector<std::size_t> next(steps.size());
  std::vector<double> free(steps.size());
  // When the input of a step is there; kNotYet: what makes it has not run.
  const auto ready = [&](int stage, const StageStep& step) {
    const int from = step.forward ? stage - 1 : stage + 1;
    if (from < 0) return 0.0;
    if (from == stages) return forward[at(stage, step.micro)];
    const double ended = (step.forward ? forward : backward)[at(from, step.micro)];
    return ended == kNotYet ? kNotYet : ended + transfer;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      while (next[s] < steps[s].size()) {
        const StageStep& step = steps[s][next[s]];
        const double input = ready(stage, step);
        if (input == kNotYet) break;
        free[s] = std::max(free[s], input) + cost(stage, step);
        (step.forward ? forward : backward)[at(stage, step.micro)] = free[s];
        ++next[s];
        moved = true;
      }
    }
  }
  for (std::size_t s = 0; s < steps.size(); ++s)
    MUSTER_ASSERT(next[s] == steps[s].size());  // else: a deadlock
  return *std::ranges::max_element(free);
}

double makespan(PipelineSchedule schedule, int micros, const StageCosts& costs) {
  const int stages = static_cast<int>(costs.forward.size());
  MUSTER_ASSERT(stages >= 1 && costs.backward.size() == costs.forward.size());
  const auto cost = [&](int stage, const StageStep& step) {
    return (step.forward ? costs.forward : costs.backward)[static_cast<std::size_t>(stage)];
  };
  return makespan(schedule, stages, micros, cost, costs.transfer);
}

double bubble(PipelineSchedule schedule, int micros, const StageCosts& costs) {
  const double work = std::accumulate(costs.forward.begin(), costs.forward.end(), 0.0) +
                      std::accumulate(costs.backward.begin(), costs.backward.end(), 0.0);
  return 1 - micros * work / (static_cast<double>(costs.forward.size()) * makespan(schedule, micros, costs));
}

// best[k][n]: the dearest stage when the first n layers are cut in k stages.
Result<std::vector<Range>> balance_layers(std::span<const double> layers, double first, double last,
                                          int stages) {
  const auto count = static_cast<int>(layers.size());
  if (stages < 1 || stages > count) {
    return fail(ErrorCode::invalid_argument,
                std::to_string(stages) + " pipeline stages for " + std::to_string(count) +
                    " layers: each stage needs a layer; possible are 1 to " + std::to_string(count));
  }
  std::vector<double> sum(layers.size() + 1);
  std::partial_sum(layers.begin(), layers.end(), sum.begin() + 1);
  const auto cost = [&](int begin, int end) {
    return sum[static_cast<std::size_t>(end)] - sum[static_cast<std::size_t>(begin)] +
           (begin == 0 ? first : 0) + (end == count ? last : 0);
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto row = std::vector<double>(layers.size() + 1, kNever);
  std::vector<std::vector<double>> best(static_cast<std::size_t>(stages) + 1, row);
  std::vector<std::vector<int>> cut(best.size(), std::vector<int>(row.size()));
  best[0][0] = 0;
  for (std::size_t k = 1; k < best.size(); ++k) {
    for (int end = static_cast<int>(k); end <= count; ++end) {
      for (int begin = static_cast<int>(k) - 1; begin < end; ++begin) {
        const double dearest = std::max(best[k - 1][static_cast<std::size_t>(begin)], cost(begin, end));
        auto& known = best[k][static_cast<std::size_t>(end)];
        if (dearest > known) continue;
        known = dearest;
        cut[k][static_cast<std::size_t>(end)] = begin;  // the last that is as good
      }
    }
  }
  std::vector<Range> ranges(static_cast<std::size_t>(stages));
  int end = count;
  for (auto k = ranges.size(); k > 0; --k) {
    const int begin = cut[k][static_cast<std::size_t>(end)];
    ranges[k - 1] = {begin, end};
    end = begin;
  }
  return ranges;
}

}  // namespace muster::train
