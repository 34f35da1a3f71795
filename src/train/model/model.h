// A Llama-class decoder with explicit forward and backward: RMSNorm, rotate-half RoPE, grouped-query causal
// attention, SwiGLU, optional tied head. No autograd engine, no randomness in a step.
//
// A Model may be a part of the whole: the layers of a pipeline stage, the cut of a tensor-parallel rank. It
// owns its weights and work space. It has no global state: several Models may run in
// several threads at once, one thread a Model at a time. It computes on as many threads as the caller's
// at::set_num_threads says. Bits depend on CPU kind, thread count, library and micro-batch shape, on nothing
// else (docs/adr/0022).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "train/comm/comm.h"
#include "train/model/flat_buffer.h"
#include "train/model/params.h"
#include "train/model/weights.h"

namespace muster::train {

// A target with this value takes no part in the loss.
constexpr std::int64_t kIgnoredTarget = -1;

// Row-major [rows, sequence]. Positions are 0..sequence-1 in every row, unless `documents` says where
// documents begin in each row (places, rising): then attention does not cross, and positions restart there.
struct Batch {
  std::span<const std::int64_t> tokens;
  std::span<const std::int64_t> targets;
  std::int64_t rows = 0;
  std::int64_t sequence = 0;
  std::span<const std::vector<std::int64_t>> documents = {};  // none, or one a row
};

struct StepResult {
  double loss_sum = 0;      // natural log, summed over valid targets
  std::int64_t tokens = 0;  // valid targets
};

// What a forward keeps for its backward (Chen et al.: Training deep nets with sublinear memory cost, 2016;
// the selective kind: Korthikanti et al., 2022).
//   none       everything
//   selective  what costs no matrix product is computed again: norms, the SwiGLU product, repeated heads
//   full       a layer keeps its input alone and runs its forward again
// All give the same bits.
enum class ActivationCheckpointing { none, selective, full };
// By the names above. invalid_argument: another one.
Result<ActivationCheckpointing> parse_activation_checkpointing(std::string_view name);
std::string_view to_string(ActivationCheckpointing kind);

// Which part of a model this is, and how it computes.
struct ModelOptions {
  // Of parameters and activations. With bf16, gradients, sums and the loss are fp32, and so are the logits.
  Dtype dtype = Dtype::f32;
  // The ranks over which every tensor of the model is cut (docs/adr/0035); all of them make the same calls
  // with the same batches. Null: one rank. sequence_parallel: the stream between the blocks is cut, too.
  Comm* tp = nullptr;
  bool sequence_parallel = false;
  Range layers = {};  // of the pipeline stage; none: all
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
};

// The part of the model that these options make.
ModelPart model_part(const ModelConfig& config, const ModelOptions& options);

class Model {
 public:
  // Holds its whole part (weights.h). invalid_argument; resource_exhausted: no memory. The group must outlive
  // the model.
  static Result<Model> create(const ModelConfig& config, const ModelOptions& options = {});
  // With weights of model_part(config, options), which may hold pieces of it only.
  static Result<Model> create(std::unique_ptr<Weights> weights, const ModelOptions& options);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ParamTable& table() const;
  Dtype dtype() const;
  FlatBuffer& parameters();
  const FlatBuffer& parameters() const;
  FlatBuffer& gradients();  // of the *sum* of token losses
  const FlatBuffer& gradients() const;

  // Of what is held.
  void init_parameters(std::uint64_t seed);

  // From here the gradients count as zero: the next micro-batch overwrites them, later ones add (g += its
  // own).
  void start_accumulation();

  // Adds the gradient of the sum of this micro-batch's token losses. Refuses tokens or targets outside the
  // vocabulary, spans that do not fit rows x sequence, and sequences beyond max_sequence; the gradients are
  // then untouched. An error of a group leaves them of no use. For a part with all layers.
  Result<StepResult> forward_backward(const Batch& batch);

  // The same as a stage of a pipeline does it, micro-batch by micro-batch (train/pipeline runs it). What a
  // forward keeps lies in a slot until the backward of the same micro-batch. Before forward(), input() holds
  // what the stage before has as its output(); before backward(), gradient() holds the gradient of output(),
  // and after it that of input(), for the stage before. The first stage reads tokens instead, the last has no
  // use for a gradient and answers the loss; the others answer 0. Backwards in the order of the forwards.
  Result<void> forward(int slot, const Batch& batch);
  Result<StepResult> backward(int slot, const Batch& batch);
  std::span<std::byte> input(int slot, const Batch& batch);
  std::span<const std::byte> output(int slot) const;
  std::span<std::byte> gradient(int slot, const Batch& batch);

  // After the last micro-batch of a step, before anything reads the gradients: sums over the tensor-parallel
  // ranks what each has of its own rows only (the norms, under sequence parallelism).
  Result<void> finish_accumulation();

  // The loss alone.
  Result<StepResult> evaluate(const Batch& batch);
  // The loss of what forward() left in a slot; 0 but on the last stage.
  Result<StepResult> loss(int slot, const Batch& batch);

  // Logits of every position: out is row-major [rows * sequence, vocab]. Targets are not used. For one rank.
  Result<void> logits(const Batch& batch, std::span<double> out);

  // The refusals of forward_backward; targets are looked at only if there are any.
  Result<void> check(const Batch& batch) const;

  // Looks for the first number that is not finite: in the stream behind each layer, then in each gradient,
  // before any reduction over ranks. Costs a pass over them, so only once something is wrong.
  struct NotFinite {
    bool backward = false;
    std::int64_t order = 0;  // of ranks that report, the least (backward, order) is the nearest to the cause
    std::string where;       // "model.layers.3"; a parameter's name; empty: nothing was found
  };
  void watch(bool on);
  const NotFinite& not_finite() const;

  struct Detail;  // tensors; train/model/detail/
  Detail& detail() { return *detail_; }

 private:
  explicit Model(std::unique_ptr<Detail> detail);
  std::unique_ptr<Detail> detail_;
};

// Initial values of what the buffer holds (init_param()); in bf16 those of fp32, rounded.
void init_parameters(const ParamTable& table, FlatBuffer& parameters, std::uint64_t seed);

// Adds the head's own gradient (the tail) to the embedding's, of those elements of the pieces that are of the
// embedding, and zeroes it. Call once a step, after the reduction over micro-batches and ranks, before norm
// and optimizer. Does nothing where there is no tail.
void fold_tied_gradient(const ParamTable& table, FlatBuffer& gradients, std::span<const Range> pieces);

}  // namespace muster::train
