// Runs a schedule on one stage of a pipeline: forwards and backwards of its model, and the streams between
// the stages.
//
// Between two steps a stage sends what the first has made and receives what the second needs, in one exchange
// with both neighbours; so stages that wait for each other's data never wait for each other's turn. All
// stages make the same calls with micro-batches of the same shapes. One thread.
//
// A run may be given up midway. For that all ranks, also those of other pipelines, pause at the same level
// (schedule.h): each has done the steps below it and received what they need, so none waits for another that
// has paused already. What only a later level needs is sent after the pause: the pipeline does not drain.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>

#include "train/comm/comm.h"
#include "train/model/model.h"
#include "train/pipeline/pauses.h"
#include "train/pipeline/schedule.h"

namespace muster::train {

// A step that this stage has run: its computation alone, without the exchange before it.
struct StepTime {
  StageStep step;
  std::chrono::steady_clock::time_point begin, end;
};

class Pipeline {
 public:
  // `stages`: the ranks of this pipeline, in order of their stage; null: there is but one. Both outlive this.
  Pipeline(Model& model, Comm* stages, PipelineSchedule schedule);

  // Forward and backward of all micro-batches: their gradients add up in the model. Loss and valid targets on
  // the last stage, 0 on the others. Nothing: given up in a pause; the gradients are of no use.
  Result<std::optional<StepResult>> run(std::span<const Batch> micros, const Pauses& pauses = {});
  // Forwards and backwards that a stage does in a run.
  static int levels(std::size_t micros) { return 2 * static_cast<int>(micros); }

  // From now on run() tells each step to `observer`, on its own thread, once it is done.
  void observe(std::function<void(const StepTime&)> observer) { observer_ = std::move(observer); }

  // The loss alone, on the last stage; 0 on the others.
  Result<StepResult> evaluate(const Batch& batch);

 private:
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == count_ - 1; }
  Result<StepResult> compute(const StageStep& step, const Batch& batch, int slots);
  bool needed_from(int level, const StageStep& done, int micros) const;
  Result<void> exchange(const StageStep* done, const StageStep* next, std::span<const Batch> micros,
                        int slots);

  Model& model_;
  Comm* stages_;
  const PipelineSchedule schedule_;
  const int stage_, count_;
  std::function<void(const StepTime&)> observer_;
};

}  // namespace muster::train
