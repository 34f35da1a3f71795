// A Llama-class decoder with explicit forward and backward: RMSNorm, rotate-half RoPE, grouped-query causal
// attention, SwiGLU, optional tied head. No autograd engine, no randomness in a step.
//
// A Model owns its parameters, gradients and work space. It has no global state: several Models may run in
// several threads at once, one thread a Model at a time. It computes on as many threads as the caller's
// at::set_num_threads says. Bits depend on CPU kind, thread count, library and micro-batch shape, on nothing
// else (docs/adr/0022).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "train/comm/comm.h"
#include "train/model/flat_buffer.h"
#include "train/model/params.h"

namespace muster::train {

// A target with this value takes no part in the loss.
constexpr std::int64_t kIgnoredTarget = -1;

// Row-major [rows, sequence]. Positions are 0..sequence-1 in every row.
struct Batch {
  std::span<const std::int64_t> tokens;
  std::span<const std::int64_t> targets;
  std::int64_t rows = 0;
  std::int64_t sequence = 0;
};

struct StepResult {
  double loss_sum = 0;      // natural log, summed over valid targets
  std::int64_t tokens = 0;  // valid targets
};

// The ranks over which every tensor of the model is cut (docs/adr/0035); all of them make the same calls with
// the same batches. `group` null: one rank. sequence_parallel: the stream between the blocks is cut, too.
struct TensorParallel {
  Comm* group = nullptr;
  bool sequence_parallel = false;
};

class Model {
 public:
  // invalid_argument, resource_exhausted; with tensor parallelism also what check_tensor_parallel() refuses.
  // The group must outlive the model.
  static Result<Model> create(const ModelConfig& config, Dtype dtype = Dtype::f32,
                              const TensorParallel& tensor_parallel = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ParamTable& table() const;
  Dtype dtype() const;
  FlatBuffer& parameters();
  const FlatBuffer& parameters() const;
  FlatBuffer& gradients();  // gradient_numel() elements; of the *sum* of token losses
  const FlatBuffer& gradients() const;

  void init_parameters(std::uint64_t seed);

  // From here the gradients count as zero: the next forward_backward overwrites them, later ones add (g +=
  // its own).
  void start_accumulation();

  // Adds the gradient of the sum of this micro-batch's token losses. Refuses tokens or targets outside the
  // vocabulary, spans that do not fit rows x sequence, and sequences beyond max_sequence; the gradients are
  // then untouched. An error of the tensor-parallel group leaves them of no use.
  Result<StepResult> forward_backward(const Batch& batch);

  // After the last micro-batch of a step, before anything reads the gradients: sums over the tensor-parallel
  // ranks what each has of its own rows only (the norms, under sequence parallelism).
  Result<void> finish_accumulation();

  // The loss alone.
  Result<StepResult> evaluate(const Batch& batch);

  // Logits of every position: out is row-major [rows * sequence, vocab]. Targets are not used. For one rank.
  Result<void> logits(const Batch& batch, std::span<double> out);

  // The refusals of forward_backward; targets are looked at only if there are any.
  Result<void> check(const Batch& batch) const;

  struct Detail;  // tensors; train/model/detail/
  Detail& detail() { return *detail_; }

 private:
  explicit Model(std::unique_ptr<Detail> detail);
  std::unique_ptr<Detail> detail_;
};

// Adds the head's own gradient (the tail) to the embedding's, of the elements in `range` of the parameters,
// and zeroes it. Call once a step, after the reduction over micro-batches and ranks, before norm and
// optimizer. Does nothing for an untied model.
void fold_tied_gradient(const ParamTable& table, FlatBuffer& gradients, Range range);

}  // namespace muster::train
