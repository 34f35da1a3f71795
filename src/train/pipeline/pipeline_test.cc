#include "train/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <thread>

#include "train/comm/thread.h"

namespace muster::train {
namespace {

constexpr int kStages = 2, kMicros = 3;

// What one stage of the model "tiny" is told of a step.
std::vector<StepTime> observed(ThreadWorld& world, int stage, PipelineSchedule schedule) {
  Comm stages("stages", world.join(stage));
  const ModelConfig config = preset("tiny").value();
  Model model = Model::create(config, {.layers = {stage, stage + 1}}).value();
  model.init_parameters(1);
  Pipeline pipeline(model, &stages, schedule);
  std::vector<StepTime> times;
  pipeline.observe([&](const StepTime& time) { times.push_back(time); });
  const std::vector<std::int64_t> tokens(8, 1);
  const std::vector<Batch> micros(kMicros, {.tokens = tokens, .targets = tokens, .rows = 1, .sequence = 8});
  EXPECT_TRUE(pipeline.run(micros));
  EXPECT_TRUE(pipeline.evaluate(micros[0]));  // tells nothing
  return times;
}

TEST(Pipeline, TellsWhenEachStepRan) {
  for (const auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    ThreadWorld world(kStages);
    std::vector<StepTime> first, last;
    std::thread other([&] { last = observed(world, 1, schedule); });
    first = observed(world, 0, schedule);
    other.join();
    const auto check = [&](const std::vector<StepTime>& times, int stage) {
      const auto steps = stage_steps(schedule, stage, kStages, kMicros);
      ASSERT_EQ(times.size(), steps.size());
      for (std::size_t i = 0; i < times.size(); ++i) {
        EXPECT_EQ(times[i].step, steps[i]);
        EXPECT_LT(times[i].begin, times[i].end);
        if (i > 0) {
          EXPECT_LE(times[i - 1].end, times[i].begin);
        }
      }
    };
    check(first, 0);
    check(last, 1);
    EXPECT_LE(first.front().end, last.front().begin);  // the second needs what the first has made
    EXPECT_LE(last.back().end, first.back().begin);
  }
}

}  // namespace
}  // namespace muster::train
