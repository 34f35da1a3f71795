#include "train/pipeline/pipeline.h"

#include <vector>

namespace muster::train {

Pipeline::Pipeline(Model& model, Comm* stages, PipelineSchedule schedule)
    : model_(model),
      stages_(stages),
      schedule_(schedule),
      stage_(stages == nullptr ? 0 : stages->rank()),
      count_(stages == nullptr ? 1 : stages->size()) {}

// Sends what `done` has made and receives what `next` needs; null: nothing.
Result<void> Pipeline::exchange(const StageStep* done, const StageStep* next, std::span<const Batch> micros,
                                int slots) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  if (done != nullptr && done->forward && !last())
    sends.push_back({.to = stage_ + 1, .data = model_.output(done->micro % slots)});
  if (done != nullptr && !done->forward && !first())
    sends.push_back(
        {.to = stage_ - 1,
         .data = model_.gradient(done->micro % slots, micros[static_cast<std::size_t>(done->micro)])});
  if (next != nullptr) {
    const Batch& batch = micros[static_cast<std::size_t>(next->micro)];
    const int slot = next->micro % slots;
    if (next->forward && !first())
      receives.push_back({.from = stage_ - 1, .data = model_.input(slot, batch)});
    if (!next->forward && !last())
      receives.push_back({.from = stage_ + 1, .data = model_.gradient(slot, batch)});
  }
  if (sends.empty() && receives.empty()) return {};
  return stages_->exchange(sends, receives);
}

Result<StepResult> Pipeline::compute(const StageStep& step, const Batch& batch, int slots) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  StepResult result;
  if (step.forward) {
    MUSTER_CHECK(model_.forward(step.micro % slots, batch));
  } else {
    MUSTER_TRY(result, model_.backward(step.micro % slots, batch));
  }
  if (observer_) observer_({.step = step, .begin = begin, .end = Clock::now()});
  return result;
}

// Whether what `done` has made is for a step of this level or a later one.
bool Pipeline::needed_from(int level, const StageStep& done, int micros) const {
  const int to = stage_ + (done.forward ? 1 : -1);
  if (to < 0 || to == count_) return false;
  return level_of(schedule_, to, count_, micros, done) >= level;
}

Result<std::optional<StepResult>> Pipeline::run(std::span<const Batch> micros, const Pauses& pauses) {
  const int count = static_cast<int>(micros.size());
  const auto steps = stage_steps(schedule_, stage_, count_, count);
  const int slots = in_flight_max(schedule_, stage_, count_, count);
  StepResult sum;
  const StageStep* done = nullptr;  // its output is yet to be sent
  for (int level = 0; level < levels(micros.size()); ++level) {
    const StageStep& step = steps[static_cast<std::size_t>(level)];
    if (pauses.at(level, levels(micros.size()))) {
      if (!needed_from(level, *done, count)) {
        MUSTER_CHECK(exchange(done, nullptr, micros, slots));
        done = nullptr;
      }
      MUSTER_TRY(const bool on, pauses.go_on());
      if (!on) return std::optional<StepResult>();
    }
    MUSTER_CHECK(exchange(done, &step, micros, slots));
    MUSTER_TRY(const StepResult one, compute(step, micros[static_cast<std::size_t>(step.micro)], slots));
    sum.loss_sum += one.loss_sum;
    sum.tokens += one.tokens;
    done = &step;
  }
  MUSTER_CHECK(exchange(done, nullptr, micros, slots));
  return std::optional(sum);
}

Result<StepResult> Pipeline::evaluate(const Batch& batch) {
  const StageStep step{.forward = true, .micro = 0};
  const std::span<const Batch> micros(&batch, 1);
  MUSTER_CHECK(exchange(nullptr, &step, micros, 1));
  MUSTER_CHECK(model_.forward(0, batch));
  MUSTER_CHECK(exchange(&step, nullptr, micros, 1));
  return model_.loss(0, batch);
}

}  // namespace muster::train
