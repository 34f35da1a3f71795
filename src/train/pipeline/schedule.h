// The order in which the stages of a pipeline run their micro-batches, as data; and which layers a stage has.
//
//   gpipe         all forwards, then all backwards (Huang et al., GPipe, 2019)
//   one_f_one_b   a stage runs ahead by as many forwards as stages follow it, then alternates: the same
//                 bubble, far fewer micro-batches in memory (PipeDream-Flush, Narayanan et al., 2021)
//
// Under both a stage runs forward and backward of the micro-batches in the order 0 .. m-1, so that its
// gradients add up in the order of a run without a pipeline. Pure; any thread.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/layout/layout.h"

namespace muster::train {

enum class PipelineSchedule { gpipe, one_f_one_b };
Result<PipelineSchedule> parse_schedule(std::string_view name);  // "gpipe", "1f1b"
std::string_view to_string(PipelineSchedule schedule);

// One thing that a stage does: forward or backward of one micro-batch.
struct StageStep {
  bool forward = true;
  int micro = 0;
  bool operator==(const StageStep&) const = default;
};

// What stage `stage` of `stages` does, in order. Preconditions: 0 <= stage < stages, micros >= 1.
std::vector<StageStep> stage_steps(PipelineSchedule schedule, int stage, int stages, int micros);

// At which place, from 0, of what stage `stage` does `step` is: its level. A pipeline that does one level
// after the other never waits for a later one: what a step sends is received by a step of the same level, or
// of the next.
int level_of(PipelineSchedule schedule, int stage, int stages, int micros, const StageStep& step);

// The most micro-batches of which a stage has run the forward and not yet the backward: what it must keep.
int in_flight_max(PipelineSchedule schedule, int stage, int stages, int micros);

// How long forward and backward of one micro-batch take, per stage; `transfer` between neighbours,
// overlapping nothing.
struct StageCosts {
  std::vector<double> forward, backward;  // one a stage
  double transfer = 0;
};

// How long one step takes on one stage.
using StepCost = std::function<double(int stage, const StageStep& step)>;

// When the last stage-step ends, if each starts as soon as its stage is free and its input is there.
double makespan(PipelineSchedule schedule, int stages, int micros, const StepCost& cost, double transfer);
double makespan(PipelineSchedule schedule, int micros, const StageCosts& costs);

// The share of the stages' time in which they wait: 1 - work / (stages * makespan).
double bubble(PipelineSchedule schedule, int micros, const StageCosts& costs);

// Cuts layers into `stages` runs, each at least one layer, so that the dearest stage is as cheap as possible.
// `first` and `last` are what the first stage (embedding) and the last (norm, head and loss) cost besides; of
// equal cuts the one that gives the earlier stages more. invalid_argument: more stages than layers, or less
// than one.
Result<std::vector<Range>> balance_layers(std::span<const double> layers, double first, double last,
                                          int stages);

}  // namespace muster::train
