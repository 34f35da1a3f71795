#include "train/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>

#include "train/comm/thread.h"
#include "train/pipeline/schedule.h"

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

TEST(Pauses, AreEveryTenSecondsOfALongStep) {
  EXPECT_EQ(levels_between_pauses({}, 100, 64), 0);  // none are wanted
  EXPECT_EQ(levels_between_pauses(10, {}, 64), 1);   // nothing is known
  EXPECT_EQ(levels_between_pauses(10, 0, 64), 0);
  EXPECT_EQ(levels_between_pauses(10, 9.9, 64), 0);
  EXPECT_EQ(levels_between_pauses(10, 10, 64), 64);
  EXPECT_EQ(levels_between_pauses(10, 40, 64), 16);
  EXPECT_EQ(levels_between_pauses(10, 39, 64), 17);  // not more often
  EXPECT_EQ(levels_between_pauses(10, 6400, 64), 1);
  EXPECT_EQ(levels_between_pauses(10, 1e9, 64), 1);
  const auto levels = [](int every, int of) {
    std::string text;
    for (int level = 0; level < of; ++level)
      text += Pauses{.go_on = {}, .every = every}.at(level, of) ? "?" : ".";
    return text;
  };
  EXPECT_EQ(levels(0, 8), "........");
  EXPECT_EQ(levels(1, 8), ".???????");
  EXPECT_EQ(levels(2, 8), "..?.?.?.");
  EXPECT_EQ(levels(3, 8), "...?....");  // at the sixth only two are left
  EXPECT_EQ(levels(4, 8), "....?...");
  EXPECT_EQ(levels(5, 8), "........");
}

// What a stage has after a step that is asked `every` so many levels and goes on `times` times.
struct Asked {
  int asked = 0;
  bool whole = false;
  std::string gradients;
  bool operator==(const Asked&) const = default;
};

std::vector<Asked> asked(PipelineSchedule schedule, int stages, int micros, int every, int times) {
  ModelConfig config = preset("tiny").value();
  config.layers = stages;
  const std::vector<std::int64_t> tokens(8, 1);
  const std::vector<Batch> batches(static_cast<std::size_t>(micros),
                                   {.tokens = tokens, .targets = tokens, .rows = 1, .sequence = 8});
  ThreadWorld world(stages);
  std::vector<Asked> all(static_cast<std::size_t>(stages));
  std::vector<std::jthread> threads;
  for (int stage = 0; stage < stages; ++stage) {
    threads.emplace_back([&, stage] {
      Comm comm("stages", world.join(stage));
      Model model = Model::create(config, {.layers = {stage, stage + 1}}).value();
      model.init_parameters(1);
      Pipeline pipeline(model, &comm, schedule);
      Asked& mine = all[static_cast<std::size_t>(stage)];
      const auto go_on = [&]() -> Result<bool> {
        MUSTER_CHECK(comm.barrier());  // a pause is one of all ranks
        return ++mine.asked <= times;
      };
      model.start_accumulation();
      const auto sum = pipeline.run(batches, {.go_on = go_on, .every = every});
      ASSERT_TRUE(sum) << sum.error().message;
      mine.whole = sum->has_value();
      const auto bytes = std::as_const(model).gradients().bytes();
      mine.gradients.assign(reinterpret_cast<const char*>(bytes.data()), mine.whole ? bytes.size() : 0);
    });
  }
  threads.clear();
  return all;
}

// No schedule, number of stages or distance of pauses makes ranks wait for each other, or changes a bit.
TEST(Pauses, ChangeNothingAndMayEndARun) {
  for (const auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    for (const int stages : {1, 2, 4}) {
      for (const int micros : {1, 3, 6}) {
        const auto plain = asked(schedule, stages, micros, 0, 0);
        for (int every = 1; every <= micros; ++every) {
          SCOPED_TRACE(std::string(to_string(schedule)) + ", stages " + std::to_string(stages) + ", micros " +
                       std::to_string(micros) + ", every " + std::to_string(every));
          const int pauses = Pipeline::levels(static_cast<std::size_t>(micros)) / every - 1;
          auto with = asked(schedule, stages, micros, every, pauses);
          for (Asked& stage : with) EXPECT_EQ(std::exchange(stage.asked, 0), pauses);
          EXPECT_EQ(with, plain);
          for (const Asked& stage : asked(schedule, stages, micros, every, pauses / 2)) {
            EXPECT_EQ(stage.whole, pauses == 0);
            EXPECT_EQ(stage.asked, pauses == 0 ? 0 : pauses / 2 + 1);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::train
