// The training run of one rank, which has a place in each axis of the mesh: a stage of a pipeline (mesh.pp),
// a replica (mesh.replica; with mesh.zero = 1 a part of the optimizer's state only), a piece of each
// parameter (mesh.shard), a cut of each tensor (mesh.tp).
//
// A step: forward and backward of this rank's micro-batches, which add up the gradient of the *sum* of token
// losses; one exchange of loss, token count and requests to stop; the gradient summed over ranks in fp32;
// divided once by the global count of tokens, clipped by the global norm; AdamW. So n ranks with one
// micro-batch each give the bits of one rank with n.
//
// A loss or gradient that is not finite ends the run before the update and names step, rank, and the layer or
// parameter where it began.
// One thread a Trainer; all ranks make the same calls.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "train/ckpt/checkpoint.h"
#include "train/comm/comm.h"
#include "train/config/config.h"
#include "train/data/loader.h"
#include "train/loop/evaluate.h"
#include "train/mesh/mesh.h"
#include "train/model/model.h"
#include "train/optim/adamw.h"
#include "train/shard/data_parallel.h"

namespace muster::train {

struct TrainerParts {
  Config config;
  const TokenStream* train = nullptr;
  const TokenStream* validation = nullptr;  // may be null
  Comm* comm = nullptr;                     // all ranks
  Writer writer;                            // node and local rank
  int node_ranks = 0;                       // ranks on each node; 0: not known
  std::set<std::string> accepted;           // --accept
  json::Object machine;                     // CPU kind, threads, library
  Dtype dtype = Dtype::f32;
  std::function<void(const std::string&)> say;  // one line; called on rank 0 only
  std::function<bool()> stop_requested;         // asked once a step on every rank
};

enum class Outcome { finished, stopped };

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
  struct StepReport {
    double loss = 0;
    double gradient_norm = 0;  // of the mean gradient, before clipping
    double learning_rate = 0;
    bool stop = false;        // some rank was asked to stop
    bool saver_ready = true;  // all ranks are done with their part of the save in flight
  };
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
