#include "train/pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/rng.h"

namespace muster::train {
namespace {

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b};

StageCosts unit(int stages, double forward = 1, double backward = 2) {
  const auto count = static_cast<std::size_t>(stages);
  return {.forward = std::vector<double>(count, forward), .backward = std::vector<double>(count, backward)};
}

// Each micro-batch once forward, once backward, in order, no backward before its forward.
TEST(PipelineSchedule, RunsEveryMicroBatchInOrder) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int micros = 1; micros <= 9; ++micros) {
        for (int stage = 0; stage < stages; ++stage) {
          int forwards = 0, backwards = 0;
          for (const StageStep& step : stage_steps(schedule, stage, stages, micros)) {
            EXPECT_EQ(step.micro, step.forward ? forwards++ : backwards++);
            EXPECT_LE(backwards, forwards);
          }
          EXPECT_EQ(forwards, micros);
          EXPECT_EQ(backwards, micros);
        }
      }
    }
  }
}

TEST(PipelineSchedule, AStageOfFour) {
  const auto text = [](PipelineSchedule schedule, int stage) {
    std::string out;
    for (const StageStep& step : stage_steps(schedule, stage, 4, 5))
      out += (step.forward ? "F" : "B") + std::to_string(step.micro);
    return out;
  };
  EXPECT_EQ(text(PipelineSchedule::gpipe, 2), "F0F1F2F3F4B0B1B2B3B4");
  EXPECT_EQ(text(PipelineSchedule::one_f_one_b, 0), "F0F1F2F3B0F4B1B2B3B4");
  EXPECT_EQ(text(PipelineSchedule::one_f_one_b, 2), "F0F1B0F2B1F3B2F4B3B4");
  EXPECT_EQ(text(PipelineSchedule::one_f_one_b, 3), "F0B0F1B1F2B2F3B3F4B4");
}

// What a pause in a pipeline rests on: nothing is received at a level before that of its sender, or later
// than at the next.
TEST(PipelineSchedule, WhatALevelSendsTheSameOrTheNextReceives) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 2; stages <= 9; ++stages) {
      for (int micros = 1; micros <= 20; ++micros) {
        for (int stage = 0; stage < stages; ++stage) {
          const auto steps = stage_steps(schedule, stage, stages, micros);
          for (int level = 0; level < static_cast<int>(steps.size()); ++level) {
            const StageStep& step = steps[static_cast<std::size_t>(level)];
            EXPECT_EQ(level_of(schedule, stage, stages, micros, step), level);
            const int to = stage + (step.forward ? 1 : -1);
            if (to < 0 || to == stages) continue;
            const int received = level_of(schedule, to, stages, micros, step);
            EXPECT_TRUE(received == level || received == level + 1)
                << to_string(schedule) << " stage " << stage << " of " << stages << " micros " << micros;
          }
        }
      }
    }
  }
}

// Both take (m + p - 1) (f + b) with equal stages, the bubble is (p - 1) / (m + p - 1).
TEST(PipelineSchedule, TakesTheTimeOfTheFormula) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int micros = stages; micros <= 12; ++micros) {
        EXPECT_DOUBLE_EQ(makespan(schedule, micros, unit(stages)), 3.0 * (micros + stages - 1))
            << to_string(schedule) << " p " << stages << " m " << micros;
        EXPECT_NEAR(bubble(schedule, micros, unit(stages)), (stages - 1.0) / (micros + stages - 1), 1e-12);
      }
    }
  }
}

TEST(PipelineSchedule, KeepsWhatItMust) {
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(in_flight_max(PipelineSchedule::gpipe, stage, 4, 16), 16);
    EXPECT_EQ(in_flight_max(PipelineSchedule::one_f_one_b, stage, 4, 16), 4 - stage);
    EXPECT_EQ(in_flight_max(PipelineSchedule::one_f_one_b, stage, 4, 2), std::min(4 - stage, 2));
  }
}

// Never less than the dearest stage's work, or than one micro-batch's way through all stages; transfers cost.
TEST(PipelineSchedule, UnevenStages) {
  Rng rng(7);
  for (int i = 0; i < 200; ++i) {
    const int stages = static_cast<int>(rng.between(1, 6)), micros = static_cast<int>(rng.between(1, 10));
    StageCosts costs;
    double way = 0, dearest = 0;
    for (int s = 0; s < stages; ++s) {
      costs.forward.push_back(rng.uniform() + 0.1);
      costs.backward.push_back(2 * rng.uniform() + 0.1);
      way += costs.forward.back() + costs.backward.back();
      dearest = std::max(dearest, micros * (costs.forward.back() + costs.backward.back()));
    }
    for (const PipelineSchedule schedule : kSchedules) {
      costs.transfer = 0;
      const double without = makespan(schedule, micros, costs);
      EXPECT_GE(without, way - 1e-12);
      EXPECT_GE(without, dearest - 1e-12);
      EXPECT_GE(bubble(schedule, micros, costs), -1e-12);
      costs.transfer = 0.5;
      EXPECT_GE(makespan(schedule, micros, costs), std::max(without, way + (stages - 1) * 1.0) - 1e-12);
    }
  }
}

// Two stages, three micro-batches, by hand: the second forward of the first stage takes long, and all after
// it waits.
//   F0 0-1  F1 1-6  B0 8-10   F2 10-11  B1 11-13     B2 15-17
//   F0 2-3  B0 3-7  F1  7-8   B1 8-9    F2 12-13     B2 13-14
TEST(PipelineSchedule, TakesTheTimeOfEachStep) {
  const auto cost = [](int stage, const StageStep& step) -> double {
    if (stage == 0) return !step.forward ? 2 : step.micro == 1 ? 5 : 1;
    return !step.forward && step.micro == 0 ? 4 : 1;
  };
  EXPECT_DOUBLE_EQ(makespan(PipelineSchedule::one_f_one_b, 2, 3, cost, 1), 17);
}

TEST(PipelineSchedule, NamesReadBack) {
  for (const PipelineSchedule schedule : kSchedules)
    EXPECT_EQ(parse_schedule(to_string(schedule)).value(), schedule);
  EXPECT_THAT(parse_schedule("zb").error().message, testing::HasSubstr("there are gpipe and 1f1b"));
}

// The least possible cost of the dearest stage, by trying every cut.
double best_by_trying(std::span<const double> layers, double first, double last, int stages) {
  const std::function<double(std::size_t, int)> rest = [&](std::size_t begin, int left) {
    double best = std::numeric_limits<double>::infinity(), sum = begin == 0 ? first : 0;
    for (std::size_t end = begin + 1; end + static_cast<std::size_t>(left) <= layers.size() + 1; ++end) {
      sum += layers[end - 1];
      if (left == 1 && end < layers.size()) continue;
      const double own = sum + (end == layers.size() ? last : 0);
      best = std::min(best, left == 1 ? own : std::max(own, rest(end, left - 1)));
    }
    return best;
  };
  return rest(0, stages);
}

TEST(Balance, IsAsGoodAsEveryCut) {
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    const int stages = static_cast<int>(rng.between(1, 5));
    std::vector<double> layers(static_cast<std::size_t>(rng.between(stages, 9)));
    for (double& layer : layers) layer = rng.uniform() + 0.1;
    const double first = rng.uniform(), last = 3 * rng.uniform();
    const auto cut = balance_layers(layers, first, last, stages);
    ASSERT_TRUE(cut);
    double dearest = 0;
    std::int64_t end = 0;
    for (const Range& range : *cut) {
      EXPECT_EQ(range.begin, end);
      EXPECT_GE(range.size(), 1);
      end = range.end;
      double own =
          (range.begin == 0 ? first : 0) + (end == static_cast<std::int64_t>(layers.size()) ? last : 0);
      for (auto l = range.begin; l < range.end; ++l) own += layers[static_cast<std::size_t>(l)];
      dearest = std::max(dearest, own);
    }
    EXPECT_EQ(end, static_cast<std::int64_t>(layers.size()));
    EXPECT_NEAR(dearest, best_by_trying(layers, first, last, stages), 1e-12);
  }
}

// The head costs as much as two layers: the last stage gets fewer.
TEST(Balance, CountsTheHead) {
  const std::vector<double> layers(8, 1.0);
  const auto cut = balance_layers(layers, 0, 2, 2);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->front(), (Range{0, 5}));
  EXPECT_EQ(cut->back(), (Range{5, 8}));
  EXPECT_THAT(
      balance_layers(layers, 0, 0, 9).error().message,
      testing::HasSubstr("9 pipeline stages for 8 layers: each stage needs a layer; possible are 1 to 8"));
}

}  // namespace
}  // namespace muster::train
