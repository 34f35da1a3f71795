// The training step of one rank, and all that it changes: model, optimizer, place in the data.
//
// A rank has a place in each axis of the mesh: a stage of a pipeline (mesh.pp), a replica (mesh.replica; with
// mesh.zero = 1 a part of the optimizer's state only), a piece of each parameter (mesh.shard), a cut of each
// tensor (mesh.tp). A step: forward and backward of this rank's micro-batches, which add up the gradient of
// the *sum* of token losses; one exchange of loss, token count and signals; the gradient summed over ranks in
// fp32; divided once by the global count of tokens, clipped by the global norm; AdamW. So n ranks with one
// micro-batch each give the bits of one rank with n.
//
// Internal to loop: Trainer (trainer.h) decides when to step, evaluate, save and stop. One thread a Stepper;
// all ranks make the same calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "train/ckpt/checkpoint.h"
#include "train/loop/groups.h"
#include "train/loop/trainer.h"
#include "train/optim/adamw.h"
#include "train/optim/lr_schedule.h"
#include "train/pipeline/pipeline.h"
#include "train/plan/run_layout.h"

namespace muster::train {

class Stepper {
 public:
  // Makes the groups of the mesh, and room for this rank's part of model and optimizer; weights() are yet to
  // be filled. parts.config.model must have passed validated(), and `layout` be made of it. The stream
  // and the comm must outlive this. May throw, as step() may, where there is no memory: memory.h.
  static Result<std::unique_ptr<Stepper>> create(const TrainerParts& parts, const RunLayout& layout);

  // `mine` is asked once, behind the backward: what is heard until then counts in this step. `go_on` is asked
  // on the way, as parts.ask_every_s says; where it says no, the step is dropped: all is as it was before.
  //
  // A loss or gradient that is not finite is an error before the update, on every rank alike; it names the
  // step, and the rank and the layer or parameter where it began. found_not_finite() then tells it from an
  // error of the exchanges.
  Result<StepReport> step(const std::function<Signals()>& mine, const GoOn& go_on);
  bool found_not_finite() const { return found_not_finite_; }

  std::int64_t steps_done() const { return step_; }
  std::uint64_t samples() const { return samples_; }  // consumed, by all ranks
  std::uint64_t windows() const { return loader_.windows(); }

  // What the optimizer updates: AdamW::weights(). After they are filled, here or by restore(), all ranks call
  // weights_filled().
  FlatBuffer& weights() { return optimizer_.weights(model_.parameters()); }
  Result<void> weights_filled();
  // Takes this rank's part of the state out of a checkpoint. Not collective.
  Result<void> restore(Reader& reader);
  // What this rank writes of it, and of a finished model. The slices point into the buffers.
  std::vector<TensorSlice> state() const;
  std::vector<TensorSlice> finished_model() const;
  // Whether the weights that this rank writes are. Not collective.
  bool weights_are_finite() const;

  const Groups& groups() const { return groups_; }
  // Whether this rank's loss is the one to count of those of its pipeline and tensor-parallel group.
  bool counts() const { return counts(comm_.rank()); }
  Pipeline& pipeline() { return pipeline_; }
  Model& model() { return model_; }
  const AdamW& optimizer() const { return optimizer_; }
  const DataParallel& replicas() const { return replicas_; }

 private:
  struct Sums {
    double loss = 0;
    std::int64_t tokens = 0;
    double seconds = 0;  // that the slowest rank took
    Signals signals;
  };
  Stepper(const TrainerParts& parts, Groups groups, Model model, const RunLayout& layout,
          const Loader& loader, const BatchPart& share);
  Result<std::optional<StepResult>> accumulate(const GoOn& go_on);
  bool counts(int rank) const;
  Result<Sums> exchange(const StepResult& result, double seconds, const Signals& mine);
  Result<double> gradient_norm();
  StepReport step_without_targets(const Signals& signals);
  tl::unexpected<Error> not_finite(const std::string& what);

  const Config config_;
  Comm& comm_;  // all ranks
  Groups groups_;
  Model model_;
  Pipeline pipeline_;
  DataParallel replicas_;
  AdamW optimizer_;
  LrSchedule schedule_;
  Loader loader_;
  BatchPart share_;
  std::vector<Range> stage_blocks_;     // of all stages' blocks, those of each
  std::vector<Samples> micro_batches_;  // of this rank, in a step
  const std::optional<double> ask_every_s_;

  std::int64_t step_ = 0;  // done
  std::uint64_t samples_ = 0;
  std::optional<double> step_seconds_;  // of the last one, as Sums::seconds
  bool found_not_finite_ = false;
};

}  // namespace muster::train
