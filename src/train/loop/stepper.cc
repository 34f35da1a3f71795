#include "train/loop/stepper.h"

#include <array>
#include <chrono>
#include <cmath>

#include "base/text.h"
#include "train/loop/not_finite.h"
#include "train/loop/state.h"
#include "train/optim/gradient_norm.h"
#include "train/shard/sharded_weights.h"

namespace muster::train {
namespace {

ShardPlace shard_place(const Config& config, const Mesh& mesh, int rank) {
  return {.shards = mesh.extent(Axis::shard),
          .shard = mesh.coordinate(Axis::shard, rank),
          .replicas = mesh.extent(Axis::replica),
          .replica = mesh.coordinate(Axis::replica, rank),
          .zero = config.zero == 1};
}

// The part of the model that this rank computes with.
Result<Model> make_model(const Config& config, const Groups& groups, const RunLayout& layout,
                         const ShardPlace& place, Dtype dtype) {
  const ModelOptions options{.dtype = dtype,
                             .tp = groups.tp.get(),
                             .sequence_parallel = config.sequence_parallel,
                             .layers = layout.stages[static_cast<std::size_t>(groups.stages->rank())],
                             .activation_checkpointing = layout.activation_checkpointing};
  ParamTable table(config.model, model_part(config.model, options));
  std::unique_ptr<Weights> weights;
  if (place.shards == 1) {
    weights = std::make_unique<Weights>(std::move(table), dtype);
  } else {
    weights = std::make_unique<ShardedWeights>(std::move(table), dtype, place, groups.gather());
  }
  return Model::create(std::move(weights), options);
}

// Of the blocks of all stages, in order, those of each.
std::vector<Range> blocks_of_stages(const ParamTable& mine, std::span<const Range> stages) {
  std::vector<Range> blocks;
  ModelPart part = mine.part();
  for (const Range& layers : stages) {
    part.layers = layers;
    const std::int64_t begin = blocks.empty() ? 0 : blocks.back().end;
    blocks.push_back({begin, begin + part_size(mine.config(), part).blocks});
  }
  return blocks;
}

}  // namespace

Result<std::unique_ptr<Stepper>> Stepper::create(const TrainerParts& parts, const RunLayout& layout) {
  const Config& config = parts.config;
  const Mesh& mesh = layout.mesh;
  const int rank = parts.comm->rank();
  MUSTER_TRY(const BatchPart share, split_batch(static_cast<std::uint64_t>(config.batch),
                                                static_cast<std::uint64_t>(config.micro_batch),
                                                mesh.batch_size(), mesh.batch_index(rank)));
  MUSTER_TRY(const Loader loader,
             Loader::create(*parts.train, static_cast<std::uint64_t>(config.sequence),
                            static_cast<std::uint64_t>(config.seed), config.ignored_token));
  MUSTER_TRY(auto groups, make_groups(config, mesh, *parts.comm, parts.node_ranks));
  MUSTER_TRY(Model model, make_model(config, groups, layout, shard_place(config, mesh, rank), parts.dtype()));
  return std::unique_ptr<Stepper>(
      new Stepper(parts, std::move(groups), std::move(model), layout, loader, share));
}

Stepper::Stepper(const TrainerParts& parts, Groups groups, Model model, const RunLayout& layout,
                 const Loader& loader, const BatchPart& share)
    : config_(parts.config),
      comm_(*parts.comm),
      groups_(std::move(groups)),
      model_(std::move(model)),
      pipeline_(model_, groups_.stages.get(), layout.schedule),
      replicas_(model_.table(), shard_place(config_, groups_.mesh, comm_.rank()), groups_.replicas()),
      optimizer_(model_.table(), parts.dtype(),
                 {.beta1 = config_.beta1,
                  .beta2 = config_.beta2,
                  .eps = config_.eps,
                  .weight_decay = config_.weight_decay},
                 replicas_.placement().owned()),
      schedule_{.peak = config_.lr,
                .warmup = config_.warmup,
                .steps = config_.steps,
                .final_ratio = config_.lr > 0 ? config_.min_lr / config_.lr : 1.0},
      loader_(loader),
      share_(share),
      stage_blocks_(blocks_of_stages(model_.table(), layout.stages)),
      micro_batches_(share.count),
      ask_every_s_(parts.ask_every_s) {}

Result<void> Stepper::restore(Reader& reader) {
  MUSTER_CHECK(restore_state(reader, model_.table(), weights(), optimizer_));
  step_ = reader.info().step;
  samples_ = reader.info().samples;
  return {};
}

// Where the model computes in another type than the weights have.
Result<void> Stepper::weights_filled() {
  if (!optimizer_.has_master()) return {};
  optimizer_.round_into(model_.parameters());
  return replicas_.gather(model_.parameters());
}

std::vector<TensorSlice> Stepper::state() const {
  return state_slices(model_.table(), optimizer_.weights(model_.parameters()), &optimizer_,
                      replicas_.placement().written());
}

std::vector<TensorSlice> Stepper::finished_model() const {
  return state_slices(model_.table(), optimizer_.weights(model_.parameters()), nullptr,
                      replicas_.placement().written());
}

bool Stepper::weights_are_finite() const {
  return std::isfinite(ordered_sum(block_squares(model_.table(), optimizer_.weights(model_.parameters()),
                                                 replicas_.placement().written())));
}

// The micro-batches of this rank; gradients add up in the model. Nothing: given up, on all ranks alike.
Result<std::optional<StepResult>> Stepper::accumulate(const GoOn& go_on) {
  std::vector<Batch> micros;
  for (std::uint64_t i = 0; i < share_.count; ++i) {
    Samples& samples = micro_batches_[i];
    MUSTER_CHECK(loader_.samples(samples_ + share_.first + i * share_.micro, share_.micro, samples));
    micros.push_back({.tokens = samples.tokens,
                      .targets = samples.targets,
                      .rows = static_cast<std::int64_t>(share_.micro),
                      .sequence = static_cast<std::int64_t>(loader_.sequence())});
    if (config_.document_mask) micros.back().documents = samples.document_begins;
  }
  const int every =
      go_on ? levels_between_pauses(ask_every_s_, step_seconds_, Pipeline::levels(micros.size())) : 0;
  model_.start_accumulation();
  MUSTER_TRY(const auto sum, pipeline_.run(micros, {.go_on = go_on, .every = every}));
  if (sum) MUSTER_CHECK(model_.finish_accumulation());
  return sum;
}

bool Stepper::counts(int rank) const {
  const Mesh& mesh = groups_.mesh;
  return mesh.coordinate(Axis::tp, rank) == 0 && mesh.coordinate(Axis::pp, rank) == mesh.extent(Axis::pp) - 1;
}

// Loss, tokens and signals of all ranks, in rank order.
Result<Stepper::Sums> Stepper::exchange(const StepResult& result, double seconds, const Signals& mine) {
  struct Told {  // doubles alone: no byte of it is padding
    double loss, tokens, seconds;
    SignalNumbers signals;
  };
  const Told own{result.loss_sum, static_cast<double>(result.tokens), seconds, numbers_of(mine)};
  std::vector<Told> told(static_cast<std::size_t>(comm_.size()));
  MUSTER_CHECK(comm_.all_gather<Told>(std::span(&own, 1), told));
  Sums sums;
  std::string wrong;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const Told& of = told[static_cast<std::size_t>(rank)];
    if (!std::isfinite(of.loss) && wrong.empty())
      wrong = "the loss of rank " + std::to_string(rank) + " is " + std::to_string(of.loss);
    sums.seconds = std::max(sums.seconds, of.seconds);
    unite(sums.signals, of.signals);
    if (!counts(rank)) continue;
    sums.loss += of.loss;
    sums.tokens += static_cast<std::int64_t>(of.tokens);
  }
  if (!wrong.empty()) return not_finite(wrong);
  return sums;
}

// Where it began is found by computing this step once more, on all ranks: no cost in a run that goes well.
tl::unexpected<Error> Stepper::not_finite(const std::string& what) {
  found_not_finite_ = true;
  model_.watch(true);
  static_cast<void>(accumulate({}));  // its loss and gradients are of no use
  return fail(ErrorCode::failed_precondition,
              "step " + std::to_string(step_ + 1) + ": " + what + where_it_began(model_.not_finite(), comm_) +
                  "; nothing was updated in this step. A lower optim.lr or a longer "
                  "optim.warmup may help");
}

// The global norm: the sums over blocks of all stages, in the order of the layers; then those of the
// tensor-parallel parts, in their order.
Result<double> Stepper::gradient_norm() {
  MUSTER_TRY(const auto mine, replicas_.squares(model_.gradients()));
  std::vector<double> all(static_cast<std::size_t>(stage_blocks_.back().end));
  const Range own = stage_blocks_[static_cast<std::size_t>(groups_.stages->rank())];
  std::ranges::copy(mine, all.begin() + own.begin);
  MUSTER_CHECK(groups_.stages->all_gather<double>(all, stage_blocks_));
  const double sum = ordered_sum(all);
  std::vector<double> parts(static_cast<std::size_t>(groups_.tp->size()));
  MUSTER_CHECK(groups_.tp->all_gather<double>(std::span(&sum, 1), parts));
  return std::sqrt(ordered_sum(parts));
}

// A mean over no tokens is nothing to follow.
StepReport Stepper::step_without_targets(const Signals& signals) {
  optimizer_.set_steps(++step_);
  samples_ += static_cast<std::uint64_t>(config_.batch);
  return {.end = StepReport::End::no_targets, .learning_rate = schedule_.at(step_ - 1), .signals = signals};
}

Result<StepReport> Stepper::step(const std::function<Signals()>& mine, const GoOn& go_on) {
  const auto start = std::chrono::steady_clock::now();
  MUSTER_TRY(const auto result, accumulate(go_on));
  if (!result) return StepReport{.end = StepReport::End::dropped};
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  MUSTER_TRY(const Sums sums, exchange(*result, took.count(), mine()));
  step_seconds_ = sums.seconds;
  if (sums.tokens == 0) return step_without_targets(sums.signals);
  FlatBuffer& gradients = model_.gradients();
  MUSTER_CHECK(replicas_.reduce(gradients));
  MUSTER_TRY(const double norm, gradient_norm());
  if (!std::isfinite(norm)) return not_finite("the gradient is not finite");
  const auto tokens = static_cast<double>(sums.tokens);
  const StepReport report{.loss = sums.loss / tokens,
                          .gradient_norm = norm / tokens,
                          .learning_rate = schedule_.at(step_),
                          .signals = sums.signals};
  optimizer_.step(model_.parameters(), gradients, report.learning_rate,
                  gradient_scale(norm, sums.tokens, config_.clip));
  MUSTER_CHECK(replicas_.gather(model_.parameters()));
  ++step_;
  samples_ += static_cast<std::uint64_t>(config_.batch);
  return report;
}

}  // namespace muster::train
