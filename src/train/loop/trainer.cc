#include "train/loop/trainer.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <new>

#include "base/assert.h"
#include "base/text.h"
#include "train/ckpt/saver.h"
#include "train/comm/agree.h"
#include "train/loop/checks.h"
#include "train/loop/evaluate.h"
#include "train/loop/groups.h"
#include "train/loop/journal.h"
#include "train/loop/machine.h"
#include "train/loop/model_folder.h"
#include "train/loop/state.h"
#include "train/model/flops.h"
#include "train/pipeline/pipeline.h"
#include "train/plan/plan.h"
#include "train/shard/sharded_weights.h"

namespace muster::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char line[512];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

ShardPlace shard_place(const Mesh& mesh, bool zero, int rank) {
  return {.shards = mesh.extent(Axis::shard),
          .shard = mesh.coordinate(Axis::shard, rank),
          .replicas = mesh.extent(Axis::replica),
          .replica = mesh.coordinate(Axis::replica, rank),
          .zero = zero};
}

std::uint64_t bytes_of(std::span<const TensorSlice> slices) {
  std::uint64_t sum = 0;
  for (const TensorSlice& piece : slices) sum += piece.bytes.size();
  return sum;
}

// The part of the model that this rank computes with.
Result<Model> make_model(const Config& config, const Groups& groups, Range layers, const ShardPlace& place,
                         Dtype dtype) {
  MUSTER_TRY(const Recompute recompute, parse_recompute(config.recompute));
  const ModelOptions options{.dtype = dtype,
                             .tp = groups.tp.get(),
                             .sequence_parallel = config.sequence_parallel,
                             .layers = layers,
                             .recompute = recompute};
  if (place.shards == 1) return Model::create(config.model, options);
  try {
    return Model::create(
        std::make_unique<ShardedWeights>(ParamTable(config.model, part_of(config.model, options)), dtype,
                                         place, groups.gather()),
        options);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::resource_exhausted, "no memory for this rank's part of the model");
  }
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

class Trainer::Impl {
 public:
  Impl(TrainerParts parts, Groups groups, Model model, std::span<const Range> stages, const ShardPlace& place,
       PipelineSchedule order, Loader loader, std::optional<Loader> held_out, BatchPart share)
      : parts_(std::move(parts)),
        config_(parts_.config),
        comm_(*parts_.comm),
        groups_(std::move(groups)),
        model_(std::move(model)),
        pipeline_(model_, groups_.stages.get(), order),
        replicas_(model_.table(), place, groups_.replicas()),
        optimizer_(model_.table(), parts_.dtype,
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
        held_out_(held_out),
        share_(share),
        stage_blocks_(blocks_of_stages(model_.table(), stages)),
        samples_(share.count) {}

  Result<void> start();
  Result<Outcome> run();
  Result<StepReport> step();
  Result<Evaluation> evaluation(const GoOn& go_on = {});

  std::int64_t steps_done() const { return step_; }
  Model& model() { return model_; }
  const AdamW& optimizer() const { return optimizer_; }
  const DataParallel& replicas() const { return replicas_; }

 private:
  struct Sums {
    double loss = 0;
    std::int64_t tokens = 0;
    bool stop = false;
    bool saver_ready = true;  // on all ranks
  };
  void say(const std::string& line) const {
    if (comm_.rank() == 0 && parts_.say) parts_.say(line);
  }
  Result<void> resume(Reader& reader);
  Result<StepResult> accumulate();
  bool counts(int rank) const;
  Result<double> gradient_norm();
  Result<Sums> exchange(const StepResult& mine);
  tl::unexpected<Error> not_finite(const std::string& what);
  Result<void> open_journal();
  Result<bool> between_passes();
  Result<bool> evaluate_now();
  Result<void> advance_save();
  Result<void> save();
  Result<void> finish_save();
  tl::unexpected<Error> step_failed(const Error& error);
  tl::unexpected<Error> resume_failed(const Error& error) const;
  Result<Outcome> stop();
  Result<void> finish();
  CheckpointInfo info() const;

  TrainerParts parts_;
  const Config& config_;
  Comm& comm_;  // all ranks
  Groups groups_;
  Model model_;
  Pipeline pipeline_;
  DataParallel replicas_;
  AdamW optimizer_;
  Schedule schedule_;
  Loader loader_;
  std::optional<Loader> held_out_;
  BatchPart share_;
  std::vector<Range> stage_blocks_;  // of all stages' blocks, those of each
  std::vector<Samples> samples_;     // a micro-batch each
  std::optional<Saver> saver_;       // with checkpoint.dir
  std::optional<Journal> journal_;   // from run() on

  std::int64_t step_ = 0;       // done
  std::uint64_t consumed_ = 0;  // samples
  std::int64_t saved_step_ = -1;
  bool found_not_finite_ = false;    // the step failed so, on every rank
  std::optional<double> last_loss_;  // of a step of this start
  std::int64_t evaluated_step_ = -1;
};

// Restores the newest checkpoint or initialises.
Result<void> Trainer::Impl::start() {
  MUSTER_CHECK(check_ends(parts_));
  const std::string& folder = config_.checkpoint_dir;
  std::optional<Reader> reader;
  if (!folder.empty()) {
    const auto on_damage =
        config_.checkpoint_resume == "latest-valid" ? OnDamage::pass_over : OnDamage::refuse;
    auto latest = latest_checkpoint(folder, on_damage, comm_);
    if (!latest) return resume_failed(latest.error());
    for (const auto& notice : latest->notices) say("checkpoint " + notice);
    reader = std::move(latest->reader);
    saver_.emplace(
        SaverOptions{.folder = folder,
                     .writer = parts_.writer,
                     .keep = Keep{.last = config_.checkpoint_keep, .every = config_.checkpoint_keep_every},
                     .stall_limit = Millis(static_cast<std::int64_t>(config_.timeout_s * 1000))},
        comm_);
    MUSTER_CHECK(
        saver_->reserve(bytes_of(state_slices(model_, &optimizer_, replicas_.placement().written()))));
  }
  if (reader) return resume(*reader);
  if (config_.checkpoint_resume == "required") {
    return fail(ErrorCode::not_found,
                "checkpoint.resume = required, but there is no finished checkpoint in \"" + folder + "\"");
  }
  if (!folder.empty()) say("checkpoint none in " + folder + ": starting at step 0");
  if (!config_.pretrained.empty()) {
    return load_pretrained(config_.pretrained, parts_.train->tokenizer_hash(), model_, comm_);
  }
  model_.init_parameters(static_cast<std::uint64_t>(config_.seed));
  return {};
}

tl::unexpected<Error> Trainer::Impl::resume_failed(const Error& error) const {
  const bool older = error.code == ErrorCode::corrupt && config_.checkpoint_resume != "latest-valid";
  return fail(error.code,
              error.message + (older ? "; bring the file back, or take the newest whole one before it with "
                                       "--resume latest-valid (checkpoint.resume)"
                                     : ""));
}

// Every rank reads its own part; what one cannot read ends all.
Result<void> Trainer::Impl::resume(Reader& reader) {
  const CheckpointInfo& stored = reader.info();
  MUSTER_CHECK(check_resume(stored.config, config_, parts_.accepted));
  if (stored.tokenizer_hash != parts_.train->tokenizer_hash()) {
    return fail(ErrorCode::failed_precondition, "the checkpoint was trained with tokenizer " +
                                                    stored.tokenizer_hash + ", the data is made with " +
                                                    parts_.train->tokenizer_hash());
  }
  if (stored.data != parts_.train->description()) {
    return fail(ErrorCode::failed_precondition,
                "the checkpoint was trained on other data: " + json::dump(stored.data) + ", now " +
                    json::dump(parts_.train->description()));
  }
  const auto read = agree(comm_, restore_state(reader, model_, &optimizer_));
  if (!read) return resume_failed(read.error());
  step_ = stored.step;
  consumed_ = stored.samples;
  saved_step_ = step_;
  say("resume step=" + std::to_string(step_) + " samples=" + std::to_string(consumed_) +
      " from=" + step_folder(config_.checkpoint_dir, step_));
  if (stored.machine != parts_.machine) {
    say("notice: not bitwise: the checkpoint is of " + json::dump(stored.machine) + ", this is " +
        json::dump(parts_.machine));
  }
  return {};
}

// The micro-batches of this rank; gradients add up in the model.
Result<StepResult> Trainer::Impl::accumulate() {
  std::vector<Batch> micros;
  for (std::uint64_t i = 0; i < share_.count; ++i) {
    Samples& samples = samples_[i];
    MUSTER_CHECK(loader_.samples(consumed_ + share_.first + i * share_.micro, share_.micro, samples));
    micros.push_back({.tokens = samples.tokens,
                      .targets = samples.targets,
                      .rows = static_cast<std::int64_t>(share_.micro),
                      .sequence = static_cast<std::int64_t>(loader_.sequence())});
    if (config_.document_mask) micros.back().documents = samples.document_begins;
  }
  model_.start_accumulation();
  MUSTER_TRY(const StepResult sum, pipeline_.run(micros));
  MUSTER_CHECK(model_.finish_accumulation());
  return sum;
}

// Whether this rank's loss is the one to count of those of its pipeline and tensor-parallel group.
bool Trainer::Impl::counts(int rank) const {
  const Mesh& mesh = groups_.mesh;
  return mesh.coordinate(Axis::tp, rank) == 0 && mesh.coordinate(Axis::pp, rank) == mesh.extent(Axis::pp) - 1;
}

// Loss, tokens, requests to stop and states of the save in flight of all ranks, in rank order.
Result<Trainer::Impl::Sums> Trainer::Impl::exchange(const StepResult& mine) {
  const std::array<double, 4> own = {mine.loss_sum, static_cast<double>(mine.tokens),
                                     parts_.stop_requested && parts_.stop_requested() ? 1.0 : 0.0,
                                     !saver_ || saver_->ready() ? 1.0 : 0.0};
  std::vector<double> all(own.size() * static_cast<std::size_t>(comm_.size()));
  MUSTER_CHECK(comm_.all_gather<double>(own, all));
  Sums sums;
  std::string wrong;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const double* of = &all[static_cast<std::size_t>(rank) * own.size()];
    if (!std::isfinite(of[0]) && wrong.empty())
      wrong = "the loss of rank " + std::to_string(rank) + " is " + format("%g", of[0]);
    sums.stop = sums.stop || of[2] != 0;
    sums.saver_ready = sums.saver_ready && of[3] != 0;
    if (!counts(rank)) continue;
    sums.loss += of[0];
    sums.tokens += static_cast<std::int64_t>(of[1]);
  }
  if (!wrong.empty()) return not_finite(wrong);
  return sums;
}

// Where it began is found by computing this step once more, on all ranks: no cost in a run that goes well.
tl::unexpected<Error> Trainer::Impl::not_finite(const std::string& what) {
  found_not_finite_ = true;
  model_.watch(true);
  static_cast<void>(accumulate());  // its loss and gradients are of no use
  const Model::NotFinite mine = model_.not_finite();
  // As text, so that the least comes first by its characters.
  const std::string report =
      mine.where.empty()
          ? ""
          : (mine.backward ? "b" : "a") + format("%08lld", static_cast<long long>(mine.order)) + mine.where;
  std::string least, ranks;
  const auto all = comm_.gather_text(report);
  if (all) {
    for (const std::string& text : *all) {
      if (!text.empty() && (least.empty() || text < least)) least = text;
    }
    for (std::size_t rank = 0; rank < all->size(); ++rank) {
      if (!least.empty() && (*all)[rank] == least)
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  std::string where = all ? ": every rank's own numbers are finite, their sum is not"
                          : "; where it began was not found: " + all.error().message;
  if (!least.empty()) {
    where = std::string("; it began in the ") + (least[0] == 'b' ? "gradient of " : "output of ") +
            least.substr(9) + " on rank " + ranks;
  }
  return fail(ErrorCode::failed_precondition,
              "step " + std::to_string(step_ + 1) + ": " + what + where +
                  "; nothing was updated, the last checkpoint is good. A lower optim.lr or a longer "
                  "optim.warmup may help");
}

// The global norm: the sums over blocks of all stages, in the order of the layers; then those of the
// tensor-parallel parts, in their order.
Result<double> Trainer::Impl::gradient_norm() {
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

Result<Trainer::StepReport> Trainer::Impl::step() {
  MUSTER_TRY(const StepResult mine, accumulate());
  MUSTER_TRY(const Sums sums, exchange(mine));
  FlatBuffer& gradients = model_.gradients();
  MUSTER_CHECK(replicas_.reduce(gradients));
  MUSTER_TRY(const double norm, gradient_norm());
  if (!std::isfinite(norm)) return not_finite("the gradient is not finite");
  const std::int64_t tokens = std::max<std::int64_t>(1, sums.tokens);
  const StepReport report{.loss = sums.loss / static_cast<double>(tokens),
                          .gradient_norm = norm / static_cast<double>(tokens),
                          .learning_rate = schedule_.at(step_),
                          .stop = sums.stop,
                          .saver_ready = sums.saver_ready};
  optimizer_.step(model_.parameters(), gradients, report.learning_rate,
                  gradient_scale(norm, tokens, config_.clip));
  MUSTER_CHECK(replicas_.gather(model_.parameters()));
  ++step_;
  consumed_ += static_cast<std::uint64_t>(config_.batch);
  last_loss_ = report.loss;
  return report;
}

// Rank 0 alone writes; what keeps it from that ends all.
Result<void> Trainer::Impl::open_journal() {
  journal_.emplace(
      JournalOptions{.path = comm_.rank() == 0 ? config_.metrics : "",
                     .steps = config_.steps,
                     .every = config_.log_every,
                     .step_tokens = config_.batch * config_.sequence,
                     .flop_per_token = flop_per_token(config_.model, config_.sequence).whole,
                     .peak_flop_s = config_.peak_gflops * 1e9 * static_cast<double>(comm_.size()),
                     .say = [this](const std::string& line) { say(line); }});
  return agree(comm_, journal_->begin(step_));
}

Result<Evaluation> Trainer::Impl::evaluation(const GoOn& go_on) {
  MUSTER_ASSERT(held_out_);
  return train::evaluate(pipeline_, *held_out_, static_cast<std::uint64_t>(config_.eval_windows),
                         static_cast<std::uint64_t>(config_.micro_batch),
                         {.part = groups_.mesh.batch_index(comm_.rank()),
                          .parts = groups_.mesh.batch_size(),
                          .counts = counts(comm_.rank())},
                         comm_, config_.document_mask, go_on);
}

// What a step's exchange tells besides the loss, told between the passes of an evaluation, which may be long:
// a save in flight goes on, and a request to stop is heard. False: some rank was asked to stop.
Result<bool> Trainer::Impl::between_passes() {
  const std::array<double, 2> own = {parts_.stop_requested && parts_.stop_requested() ? 1.0 : 0.0,
                                     !saver_ || saver_->ready() ? 1.0 : 0.0};
  std::vector<double> all(own.size() * static_cast<std::size_t>(comm_.size()));
  MUSTER_CHECK(comm_.all_gather<double>(own, all));
  bool stop = false, saver_ready = true;
  for (std::size_t at = 0; at < all.size(); at += own.size()) {
    stop = stop || all[at] != 0;
    saver_ready = saver_ready && all[at + 1] != 0;
  }
  if (saver_ready) MUSTER_CHECK(advance_save());
  return !stop;
}

// False: given up, as some rank was asked to stop.
Result<bool> Trainer::Impl::evaluate_now() {
  if (!held_out_ || evaluated_step_ == step_) return true;
  const auto start = SteadyClock::now();
  bool given_up = false;
  const auto e = evaluation([&]() -> Result<bool> {
    MUSTER_TRY(const bool on, between_passes());
    given_up = !on;
    return on;
  });
  if (given_up) return false;
  if (!e) return tl::unexpected(e.error());
  evaluated_step_ = step_;
  journal_->evaluated(step_, *e);
  journal_->leave_out(SteadyClock::now() - start);
  return true;
}

CheckpointInfo Trainer::Impl::info() const {
  return {.step = step_,
          .samples = consumed_,
          .tokenizer_hash = parts_.train->tokenizer_hash(),
          .config = to_json(config_),
          .layout = {{"world", comm_.size()},
                     {"pp", groups_.mesh.extent(Axis::pp)},
                     {"replica", groups_.mesh.extent(Axis::replica)},
                     {"shard", groups_.mesh.extent(Axis::shard)},
                     {"tp", groups_.mesh.extent(Axis::tp)},
                     {"zero", config_.zero}},
          .machine = parts_.machine,
          .data = parts_.train->description(),
          .tensors = state_tensors(model_.table(), parts_.dtype, true)};
}

// Begins to save this step. Where the save before is not through, waits for it.
Result<void> Trainer::Impl::save() {
  if (!saver_ || saved_step_ == step_) return {};
  const auto start = SteadyClock::now();
  MUSTER_CHECK(finish_save());
  MUSTER_CHECK(saver_->start(info(), state_slices(model_, &optimizer_, replicas_.placement().written())));
  saved_step_ = step_;
  journal_->leave_out(SteadyClock::now() - start);
  return {};
}

// The next part of the save in flight, if there is one. When all ranks are done with theirs.
Result<void> Trainer::Impl::advance_save() {
  if (!saver_ || !saver_->in_flight()) return {};
  MUSTER_TRY(const auto saved, saver_->advance());
  if (saved) journal_->saved(*saved);
  return {};
}

Result<void> Trainer::Impl::finish_save() {
  if (!saver_) return {};
  MUSTER_TRY(const auto report, saver_->wait());
  if (report) journal_->saved(*report);
  return {};
}

Result<void> Trainer::Impl::finish() {
  Result<void> written;
  if (!config_.output_dir.empty() && groups_.mesh.coordinate(Axis::replica, comm_.rank()) == 0) {
    written = write_model(config_.output_dir, model_, config_, info(), parts_.writer.node, *groups_.copy);
    if (written) say("model step=" + std::to_string(step_) + " path=" + config_.output_dir);
  }
  const auto agreed = agree(comm_, written);
  return agreed ? agreed : tl::unexpected(agreed.error().with_context("the model is not written"));
}

// A step that is not finite fails on all ranks alike: what is being saved is of a good step, so it is
// finished.
tl::unexpected<Error> Trainer::Impl::step_failed(const Error& error) {
  if (found_not_finite_) {
    if (const auto saved = finish_save(); !saved)
      return fail(error.code, error.message + "; and " + saved.error().message);
  }
  return tl::unexpected(error);
}

Result<Outcome> Trainer::Impl::stop() {
  MUSTER_CHECK(save());
  MUSTER_CHECK(finish_save());
  say("stopped at step " + std::to_string(step_) + " of " + std::to_string(config_.steps) +
      (config_.checkpoint_dir.empty() ? "; nothing saved: checkpoint.dir is empty"
                                      : "; start again to go on"));
  return Outcome::stopped;
}

Result<Outcome> Trainer::Impl::run() {
  MUSTER_CHECK(open_journal());
  say(format(
      "start ranks=%d pp=%d replica=%d shard=%d tp=%d zero=%lld parameters=%lld steps=%lld batch=%lld "
      "micro_batch=%lld "
      "sequence=%lld windows=%llu",
      comm_.size(), groups_.mesh.extent(Axis::pp), groups_.mesh.extent(Axis::replica),
      groups_.mesh.extent(Axis::shard), groups_.mesh.extent(Axis::tp), static_cast<long long>(config_.zero),
      static_cast<long long>(parameter_count(config_.model)), static_cast<long long>(config_.steps),
      static_cast<long long>(config_.batch), static_cast<long long>(config_.micro_batch),
      static_cast<long long>(config_.sequence), static_cast<unsigned long long>(loader_.windows())));
  MUSTER_TRY(const bool begin, evaluate_now());
  if (!begin && step_ < config_.steps) return stop();
  while (step_ < config_.steps) {
    const auto made = step();
    if (!made) return step_failed(made.error());
    const StepReport report = *made;
    journal_->step({.step = step_,
                    .loss = report.loss,
                    .gradient_norm = report.gradient_norm,
                    .learning_rate = report.learning_rate,
                    .tokens = consumed_ * static_cast<std::uint64_t>(config_.sequence)});
    if (report.saver_ready) MUSTER_CHECK(advance_save());
    if (step_ == config_.steps) break;
    if (report.stop) return stop();
    if (config_.checkpoint_every > 0 && step_ % config_.checkpoint_every == 0) MUSTER_CHECK(save());
    if (config_.eval_every > 0 && step_ % config_.eval_every == 0) {
      MUSTER_TRY(const bool go_on, evaluate_now());
      if (!go_on) return stop();
    }
  }
  MUSTER_CHECK(save());
  MUSTER_CHECK(finish_save());   // it counts before the evaluation, which may be long
  MUSTER_CHECK(evaluate_now());  // given up where a stop is asked for: there is nothing more to train
  MUSTER_CHECK(finish());
  say(format("done step=%lld/%lld", static_cast<long long>(step_), static_cast<long long>(config_.steps)) +
      (last_loss_ ? format(" loss=%.4f", *last_loss_) : ""));
  return Outcome::finished;
}

Result<std::unique_ptr<Trainer>> Trainer::create(TrainerParts parts) {
  MUSTER_CHECK(check_agreement(parts));
  Config& config = parts.config;
  if (config.model.vocab == 0) config.model.vocab = parts.train->vocab_size();
  if (config.model.vocab < parts.train->vocab_size()) {
    return fail(ErrorCode::failed_precondition, "model.vocab is " + std::to_string(config.model.vocab) +
                                                    ", the data's tokenizer has " +
                                                    std::to_string(parts.train->vocab_size()) +
                                                    " tokens; tokenize with the model's tokenizer");
  }
  MUSTER_TRY(config.model, validated(config.model));
  const int ranks = parts.comm->size(), ranks_here = std::max(1, parts.node_ranks);
  MUSTER_TRY(const Plan plan,
             make_plan(config, ranks, parts.node_ranks, static_cast<int>(size_of(parts.dtype))));
  MUSTER_CHECK(check_memory(plan, ranks_here, usable_memory()));
  const Mesh& mesh = plan.layout.mesh;
  const auto& stages = plan.layout.stages;
  MUSTER_TRY(const BatchPart share, split_batch(static_cast<std::uint64_t>(config.batch),
                                                static_cast<std::uint64_t>(config.micro_batch),
                                                mesh.batch_size(), mesh.batch_index(parts.comm->rank())));
  const auto sequence = static_cast<std::uint64_t>(config.sequence),
             seed = static_cast<std::uint64_t>(config.seed);
  MUSTER_TRY(const Loader loader, Loader::create(*parts.train, sequence, seed, config.ignored_token));
  std::optional<Loader> held_out;
  if (parts.validation != nullptr) {
    if (parts.validation->tokenizer_hash() != parts.train->tokenizer_hash()) {
      return fail(ErrorCode::failed_precondition, "data.validation is made with tokenizer " +
                                                      parts.validation->tokenizer_hash() +
                                                      ", data.train with " + parts.train->tokenizer_hash());
    }
    auto held = Loader::create(*parts.validation, sequence, seed, config.ignored_token);
    if (!held) return tl::unexpected(held.error().with_context("data.validation"));
    held_out = *held;
  }
  MUSTER_TRY(const PipelineSchedule order, parse_schedule(config.schedule));
  MUSTER_TRY(auto groups, make_groups(config, mesh, *parts.comm, parts.node_ranks));
  const ShardPlace place = shard_place(mesh, config.zero == 1, parts.comm->rank());
  MUSTER_TRY(Model model, make_model(config, groups, stages[static_cast<std::size_t>(groups.stages->rank())],
                                     place, parts.dtype));
  auto impl = std::make_unique<Impl>(std::move(parts), std::move(groups), std::move(model), stages, place,
                                     order, loader, held_out, share);
  MUSTER_CHECK(impl->start());
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Result<Outcome> Trainer::run() { return impl_->run(); }
Result<Trainer::StepReport> Trainer::step() { return impl_->step(); }
Result<Evaluation> Trainer::evaluate() { return impl_->evaluation(); }
std::int64_t Trainer::steps_done() const { return impl_->steps_done(); }
Model& Trainer::model() { return impl_->model(); }
const AdamW& Trainer::optimizer() const { return impl_->optimizer(); }
const DataParallel& Trainer::replicas() const { return impl_->replicas(); }

}  // namespace muster::train
