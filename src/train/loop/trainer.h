// The training run of one rank: steps to the last one, with evaluations, checkpoints, lines of progress, and
// the model at the end. What a step is: stepper.h.
//
// A loss or gradient that is not finite ends the run before the update and names step, rank, and the layer or
// parameter where it began.
// One thread a Trainer; all ranks make the same calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "train/ckpt/checkpoint.h"
#include "train/comm/comm.h"
#include "train/config/config.h"
#include "train/loop/signals.h"

namespace muster::train {

class AdamW;
class DataParallel;
class Model;
class TokenStream;
struct Evaluation;

struct TrainerParts {
  Config config;
  const TokenStream* train = nullptr;
  const TokenStream* validation = nullptr;  // may be null
  Comm* comm = nullptr;                     // all ranks
  Writer writer;                            // node and local rank
  int node_ranks = 0;                       // ranks on each node; 0: not known
  std::set<std::string> accepted;           // --accept
  std::vector<json::Object> machines;       // of every rank: machine_descriptions()
  std::optional<Dtype> dtype_override = {};
  std::function<void(const std::string&)> say;  // one line; see say_once()
  // Asked on every rank: behind every step, before every pass of an evaluation, and within a step about as
  // often as ask_every_s says, if the one before took at least twice that (Pauses). Nothing: not within a
  // step.
  std::function<bool()> stop_requested;
  std::optional<double> ask_every_s = 10;

  // What the model computes in: config.precision, but for tests that do it in fp64.
  Dtype dtype() const { return dtype_override.value_or(compute_dtype(config)); }

  // On rank 0: says the line.
  void say_once(const std::string& line) const {
    if (comm->rank() == 0 && say) say(line);
  }
};

enum class Outcome { finished, stopped };

struct StepReport {
  enum class End {
    updated,
    no_targets,  // none of the batch counts: loss and norm are 0, nothing was updated
    dropped,     // given up before its update
  };
  End end = End::updated;
  double loss = 0;
  double gradient_norm = 0;  // of the mean gradient, before clipping
  double learning_rate = 0;
  double exchange_s = 0;  // that this rank was in exchanges, waiting for peers included
  Signals signals;        // of all ranks
};

class Trainer {
 public:
  // Checks that all ranks run the same thing, builds the model, and restores the newest checkpoint, if
  // there is one; a damaged one is an error unless checkpoint.resume says otherwise. The streams and the comm
  // must outlive the trainer.
  static Result<std::unique_ptr<Trainer>> create(TrainerParts parts);
  ~Trainer();

  // To the last step, with evaluations, checkpoints, and the model at the end.
  Result<Outcome> run();

  // One step alone; nothing is saved or said.
  Result<StepReport> step();
  // The held-out loss as it is now. There must be held-out data.
  Result<Evaluation> evaluate();

  std::int64_t steps_done() const;
  Model& model();
  const AdamW& optimizer() const;
  const DataParallel& replicas() const;

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::train
