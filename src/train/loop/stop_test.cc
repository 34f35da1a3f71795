#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "train/ckpt/checkpoint.h"
#include "train/loop/evaluate.h"
#include "train/loop/test_layout.h"
#include "train/pipeline/pipeline.h"

namespace muster::train {
namespace {

using testing::Contains;
using testing::HasSubstr;

// Layouts whose ranks wait for each other within a step: in a pipeline, for cuts, for pieces.
const std::vector<Layout> kLayouts = {
    {.settings = {}},
    {.replica = 3, .settings = {"mesh.zero=1"}},
    {.pp = 3, .settings = {"mesh.schedule=gpipe"}},
    {.pp = 3, .replica = 2, .settings = {"mesh.schedule=1f1b"}},
    {.pp = 2, .tp = 2, .settings = {"mesh.sequence_parallel=true"}},
    {.shard = 4, .node_ranks = 2, .settings = {"mesh.gather=hierarchical"}},
    {.pp = 2, .replica = 2, .shard = 2, .tp = 2, .settings = {}},
};

// Runs of a layout that is asked to stop.
class StopOf {
 public:
  explicit StopOf(const Layout& layout) : layout_(layout) {
    for (const char* text : {"model.layers=3", "train.micro_batch=1", "train.batch=12", "train.steps=3"})
      layout_.settings.emplace_back(text);
  }
  int micros() const { return 12 / (layout_.replica * layout_.shard); }
  // Asks that go by in a step: before every level but the first, and at the end.
  int asks() const { return Pipeline::levels(static_cast<std::size_t>(micros())); }

  // One rank is told to stop at its `ask`-th question, from 1; 0: never. Rank 0's trace.
  Trace run(const std::string& folder, int ask, std::optional<double> every_s = 0) const {
    Layout with = layout_;
    with.settings.push_back("checkpoint.dir=" + folder);
    with.settings.emplace_back("checkpoint.every=1");
    const auto traces = run_ranks(layout_.ranks(), [&](int rank) {
      return RunOptions{.config = config_of(with),
                        .train = &data_,
                        .stop = after(ask, rank == layout_.ranks() - 1),
                        .steps_only = false,
                        .dtype = Dtype::f64,
                        .node_ranks = layout_.node_ranks,
                        .ask_every_s = every_s};
    });
    for (const Trace& trace : traces) {
      EXPECT_EQ(trace.error, "") << name_of(layout_);
      EXPECT_EQ(trace.outcome, traces[0].outcome) << name_of(layout_);
    }
    return traces[0];
  }

 private:
  Layout layout_;
  const MemoryStream data_ = tokens();
};

// Wherever in a step it is asked, the step leaves no trace: the checkpoint is of the step before, and who
// goes on from it ends where one uninterrupted run does.
TEST(Stop, ALongStepIsDroppedInItsMidst) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    const StopOf stop(layout);
    const TempDir folder;
    const std::string whole = stop.run(folder / "whole", 0, std::nullopt).state;
    EXPECT_EQ(stop.run(folder / "asking", 0).state, whole);
    for (const int ask : {1, 2, stop.asks() / 2, stop.asks() - 1}) {
      SCOPED_TRACE("at question " + std::to_string(ask) + " of the second step");
      const std::string mine = folder / std::to_string(ask);
      const Trace stopped = stop.run(mine, stop.asks() + ask);
      EXPECT_EQ(stopped.outcome, Outcome::stopped);
      EXPECT_THAT(stopped.lines, Contains(HasSubstr("step 2 is dropped")));
      EXPECT_THAT(stopped.lines.back(), HasSubstr("stopped at step 1 of 3"));
      const Trace again = stop.run(mine, 0);
      EXPECT_THAT(again.lines, Contains(HasSubstr("resume step=1")));
      EXPECT_EQ(again.state, whole);
    }
  }
}

TEST(Stop, AtTheEndOfAStepItCounts) {
  const StopOf stop({.pp = 2, .settings = {}});
  const TempDir folder;
  EXPECT_THAT(stop.run(folder.path(), 2 * stop.asks()).lines.back(), HasSubstr("stopped at step 2 of 3"));
}

// Of the first step nobody knows how long it is.
TEST(Stop, TheFirstStepOfAStartIsDropped) {
  const StopOf stop({.replica = 2, .settings = {}});
  const TempDir folder;
  EXPECT_THAT(stop.run(folder.path(), 3, 1000.0).lines.back(), HasSubstr("stopped at step 0 of 3"));
  EXPECT_TRUE(latest_checkpoint(folder.path(), OnDamage::refuse)->reader);
}

// A short step is finished: in the second, the ranks are asked but at its end.
TEST(Stop, AShortStepIsFinished) {
  const StopOf stop({.replica = 2, .settings = {}});
  const TempDir folder;
  const Trace stopped = stop.run(folder.path(), stop.asks() + 1, 1000.0);
  EXPECT_THAT(stopped.lines.back(), HasSubstr("stopped at step 2 of 3"));
}

// Asked to stop while it evaluates, one rank of three: all give up, save and stop; a save in flight counts.
TEST(Stop, AnEvaluationHearsARequestToStop) {
  const auto data = tokens(), held_out = tokens(3, 3000);
  const TempDir folder;
  const auto traces = run_ranks(3, [&](int rank) {
    // Asked 2 passes into the evaluation behind step 2: three passes before step 1, then the steps.
    auto asked = std::make_shared<int>(0);
    return RunOptions{.config = tiny({"checkpoint.dir=" + folder.path(), "checkpoint.every=2", "eval.every=2",
                                      "eval.windows=18", "checkpoint.keep=9"}),
                      .train = &data,
                      .validation = &held_out,
                      .stop = [=] { return ++*asked == 3 + 2 + 2 && rank == 1; },
                      .steps_only = false};
  });
  for (const Trace& trace : traces) {
    EXPECT_EQ(trace.error, "");
    EXPECT_EQ(trace.outcome, Outcome::stopped);
  }
  EXPECT_THAT(traces[0].lines.back(), HasSubstr("stopped at step 2 of 8"));
  EXPECT_THAT(traces[0].lines, testing::Not(Contains(HasSubstr("eval step=2"))));
  EXPECT_TRUE(latest_checkpoint(folder.path(), OnDamage::refuse)->reader);
  const auto again = run_ranks(3, [&](int) {
    return RunOptions{.config = tiny({"checkpoint.dir=" + folder.path(), "checkpoint.every=2", "eval.every=2",
                                      "eval.windows=18", "checkpoint.keep=9"}),
                      .train = &data,
                      .validation = &held_out,
                      .steps_only = false};
  });
  EXPECT_THAT(again[0].lines, Contains(HasSubstr("resume step=2")));
  EXPECT_THAT(again[0].lines.back(), HasSubstr("done step=8/8"));
}

}  // namespace
}  // namespace muster::train
