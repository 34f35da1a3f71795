#include "train/loop/trainer.h"

#include <array>
#include <chrono>

#include "base/assert.h"
#include "train/ckpt/saver.h"
#include "train/comm/agree.h"
#include "train/formatted.h"
#include "train/loop/checks.h"
#include "train/loop/evaluate.h"
#include "train/loop/journal.h"
#include "train/loop/machine.h"
#include "train/loop/memory.h"
#include "train/loop/resume.h"
#include "train/loop/state.h"
#include "train/loop/stepper.h"
#include "train/loop/write_model.h"
#include "train/model/flops.h"

namespace muster::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::uint64_t bytes_of(std::span<const TensorSlice> slices) {
  std::uint64_t sum = 0;
  for (const TensorSlice& piece : slices) sum += piece.bytes.size();
  return sum;
}

// Gives the model the vocabulary of the data where none is configured.
Result<ModelConfig> sized_model(const TrainerParts& parts) {
  ModelConfig model = parts.config.model;
  if (model.vocab == 0) model.vocab = parts.train->vocab_size();
  if (model.vocab < parts.train->vocab_size()) {
    return fail(ErrorCode::failed_precondition, "model.vocab is " + std::to_string(model.vocab) +
                                                    ", the data's tokenizer has " +
                                                    std::to_string(parts.train->vocab_size()) +
                                                    " tokens; tokenize with the model's tokenizer");
  }
  return validated(model);
}

Result<std::optional<Loader>> held_out_loader(const TrainerParts& parts) {
  if (parts.validation == nullptr) return std::optional<Loader>();
  if (parts.validation->tokenizer_hash() != parts.train->tokenizer_hash()) {
    return fail(ErrorCode::failed_precondition, "data.validation is made with tokenizer " +
                                                    parts.validation->tokenizer_hash() +
                                                    ", data.train with " + parts.train->tokenizer_hash());
  }
  const auto loader =
      Loader::create(*parts.validation, static_cast<std::uint64_t>(parts.config.sequence),
                     static_cast<std::uint64_t>(parts.config.seed), parts.config.ignored_token);
  if (!loader) return tl::unexpected(loader.error().with_context("data.validation"));
  return *loader;
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(TrainerParts parts, const MemoryPlan& memory, std::unique_ptr<Stepper> stepper,
       const std::optional<Loader>& held_out)
      : parts_(std::move(parts)),
        memory_(memory),
        config_(parts_.config),
        comm_(*parts_.comm),
        stepper_(std::move(stepper)),
        held_out_(held_out) {}

  Result<void> start();
  Result<Outcome> run();
  Result<StepReport> step(const GoOn& go_on = {});
  Result<std::optional<Evaluation>> evaluation(const GoOn& go_on = {});
  Stepper& stepper() { return *stepper_; }

 private:
  std::int64_t step_done() const { return stepper_->steps_done(); }
  void say(const std::string& line) const { parts_.say_once(line); }
  Signals signals() const;
  Result<void> open_journal();
  void say_start() const;
  Result<bool> go_on();
  Result<bool> evaluate_now();
  Result<void> advance_save();
  Result<void> check_weights();
  Result<void> save();
  Result<void> finish_save();
  tl::unexpected<Error> step_failed(const Error& error);
  Result<Outcome> stop();
  Result<void> finish();
  CheckpointInfo info() const;

  TrainerParts parts_;
  const MemoryPlan memory_;  // of this rank
  const Config& config_;
  Comm& comm_;  // all ranks
  std::unique_ptr<Stepper> stepper_;
  std::optional<Loader> held_out_;
  CheckpointDir checkpoint_dir_;    // longer than the saver, which writes into it
  std::optional<Saver> saver_;      // with checkpoint.dir
  std::optional<Journal> journal_;  // from run() on
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
  std::optional<double> last_loss_;  // of a step of this start
};

// Restores the newest checkpoint or initialises, and makes room for saves.
Result<void> Trainer::Impl::start() {
  MUSTER_CHECK(check_ends(parts_));
  MUSTER_TRY(checkpoint_dir_, open_checkpoint_dir(parts_));
  MUSTER_TRY(const Begin begin, resume_or_begin(parts_, checkpoint_dir_, *stepper_));
  if (begin == Begin::at_checkpoint) saved_step_ = step_done();
  if (config_.checkpoint_dir.empty()) return {};
  saver_.emplace(
      SaverOptions{.folder = config_.checkpoint_dir,
                   .writer = parts_.writer,
                   .keep = Keep{.last = config_.checkpoint_keep, .every = config_.checkpoint_keep_every},
                   .stall_limit = Millis(static_cast<std::int64_t>(config_.timeout_s * 1000)),
                   .when_full = "free space there, keep fewer (checkpoint.keep, now " +
                                std::to_string(config_.checkpoint_keep) +
                                "), or choose another checkpoint.dir. The checkpoints before it are whole"},
      comm_);
  const auto room = saver_->reserve(bytes_of(stepper_->state()));
  return agree(comm_, room ? room : out_of_memory("the copy of the state that a save writes", memory_));
}

// This rank's.
Signals Trainer::Impl::signals() const {
  return {.stop = parts_.stop_requested && parts_.stop_requested(),
          .saver_ready = !saver_ || saver_->ready()};
}

Result<StepReport> Trainer::Impl::step(const GoOn& go_on) {
  const auto busy = comm_.busy();
  MUSTER_TRY(StepReport report, with_memory_errors("a step", memory_, [&] {
               return stepper_->step([this] { return signals(); }, go_on);
             }));
  report.exchange_s = std::chrono::duration<double>(comm_.busy() - busy).count();
  if (report.end == StepReport::End::updated) last_loss_ = report.loss;
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
  return agree(comm_, journal_->begin(step_done()));
}

// Nothing: given up.
Result<std::optional<Evaluation>> Trainer::Impl::evaluation(const GoOn& go_on) {
  MUSTER_ASSERT(held_out_);
  const Mesh& mesh = stepper_->groups().mesh;
  return with_memory_errors("an evaluation", memory_, [&] {
    return train::evaluate(stepper_->pipeline(), *held_out_,
                           {.windows_max = static_cast<std::uint64_t>(config_.eval_windows),
                            .rows = static_cast<std::uint64_t>(config_.micro_batch),
                            .part = {.part = mesh.batch_index(comm_.rank()),
                                     .parts = mesh.batch_size(),
                                     .counts = stepper_->counts()},
                            .document_mask = config_.document_mask,
                            .go_on = go_on,
                            .say = [this](const std::string& line) { say(line); }},
                           comm_);
  });
}

// What a step's exchange tells besides the loss, told on the way through what may be long, an evaluation or
// such a step: a save in flight goes on, and a request to stop is heard. False: some rank was asked to stop.
Result<bool> Trainer::Impl::go_on() {
  const SignalNumbers own = numbers_of(signals());
  std::vector<SignalNumbers> told(static_cast<std::size_t>(comm_.size()));
  MUSTER_CHECK(comm_.all_gather<SignalNumbers>(std::span(&own, 1), told));
  Signals all;
  for (const SignalNumbers& of : told) unite(all, of);
  if (all.saver_ready) MUSTER_CHECK(advance_save());
  return !all.stop;
}

// False: given up, as some rank was asked to stop.
Result<bool> Trainer::Impl::evaluate_now() {
  if (!held_out_ || evaluated_step_ == step_done()) return true;
  const auto start = SteadyClock::now();
  MUSTER_TRY(const auto e, evaluation([this] { return go_on(); }));
  if (!e) return false;
  evaluated_step_ = step_done();
  journal_->evaluated(step_done(), *e);
  journal_->leave_out(SteadyClock::now() - start);
  return true;
}

CheckpointInfo Trainer::Impl::info() const {
  const Mesh& mesh = stepper_->groups().mesh;
  return {.step = step_done(),
          .samples = stepper_->samples(),
          .tokenizer_hash = parts_.train->tokenizer_hash(),
          .config = to_json(config_),
          .layout = {{"world", comm_.size()},
                     {"pp", mesh.extent(Axis::pp)},
                     {"replica", mesh.extent(Axis::replica)},
                     {"shard", mesh.extent(Axis::shard)},
                     {"tp", mesh.extent(Axis::tp)},
                     {"zero", config_.zero}},
          .machines = each_once(parts_.machines),
          .data = parts_.train->description(),
          .tensors = state_tensors(stepper_->model().table(), wide(parts_.dtype()), true)};
}

// An update may overflow, which its gradient does not show.
Result<void> Trainer::Impl::check_weights() {
  const std::string step = "step " + std::to_string(step_done());
  return agree(comm_, stepper_->weights_are_finite()
                          ? Result<void>{}
                          : fail(ErrorCode::failed_precondition,
                                 step + ": weights are not finite after its update; it is not saved. A lower "
                                        "optim.lr or a longer optim.warmup may help"));
}

// Begins to save this step. Where the save before is not through, waits for it.
Result<void> Trainer::Impl::save() {
  if (!saver_ || saved_step_ == step_done()) return {};
  const auto start = SteadyClock::now();
  MUSTER_CHECK(finish_save());
  MUSTER_CHECK(check_weights());
  MUSTER_CHECK(saver_->start(info(), stepper_->state()));
  saved_step_ = step_done();
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
  if (config_.output_dir.empty()) return {};
  if (!saver_) MUSTER_CHECK(check_weights());
  CheckpointInfo model = info();
  model.tensors = state_tensors(stepper_->model().table(), wide(parts_.dtype()), false);
  const auto written =
      write_model(config_.output_dir, config_, model, stepper_->finished_model(), parts_.writer.node, comm_);
  if (!written) return tl::unexpected(written.error().with_context("the model is not written"));
  say("model step=" + std::to_string(step_done()) + " path=" + config_.output_dir);
  return {};
}

// A step that is not finite fails on all ranks alike: what is being saved is of a good step, so it is
// finished.
tl::unexpected<Error> Trainer::Impl::step_failed(const Error& error) {
  if (stepper_->found_not_finite()) {
    if (const auto saved = finish_save(); !saved)
      return fail(error.code, error.message + "; and " + saved.error().message);
  }
  return tl::unexpected(error);
}

Result<Outcome> Trainer::Impl::stop() {
  MUSTER_CHECK(save());
  MUSTER_CHECK(finish_save());
  say("stopped at step " + std::to_string(step_done()) + " of " + std::to_string(config_.steps) +
      (config_.checkpoint_dir.empty() ? "; nothing saved: checkpoint.dir is empty"
                                      : "; start again to go on"));
  return Outcome::stopped;
}

void Trainer::Impl::say_start() const {
  const Mesh& mesh = stepper_->groups().mesh;
  say(formatted(
      "start ranks=%d pp=%d replica=%d shard=%d tp=%d zero=%lld parameters=%lld steps=%lld batch=%lld "
      "micro_batch=%lld sequence=%lld precision=%s windows=%llu",
      comm_.size(), mesh.extent(Axis::pp), mesh.extent(Axis::replica), mesh.extent(Axis::shard),
      mesh.extent(Axis::tp), static_cast<long long>(config_.zero),
      static_cast<long long>(parameter_count(config_.model)), static_cast<long long>(config_.steps),
      static_cast<long long>(config_.batch), static_cast<long long>(config_.micro_batch),
      static_cast<long long>(config_.sequence), config_.precision.c_str(),
      static_cast<unsigned long long>(stepper_->windows())));
}

Result<Outcome> Trainer::Impl::run() {
  MUSTER_CHECK(open_journal());
  say_start();
  MUSTER_TRY(const bool begin, evaluate_now());
  if (!begin && step_done() < config_.steps) return stop();
  while (step_done() < config_.steps) {
    const auto made = step([this] { return go_on(); });
    if (!made) return step_failed(made.error());
    const StepReport report = *made;
    if (report.end == StepReport::End::dropped) {
      say(formatted("notice: step %lld is dropped, as its end is not near; the next start makes it again",
                    static_cast<long long>(step_done() + 1)));
      return stop();
    }
    const std::int64_t step = step_done();
    const bool updated = report.end == StepReport::End::updated;
    const auto if_updated = [&](double number) { return updated ? std::optional(number) : std::nullopt; };
    journal_->step({.step = step,
                    .loss = if_updated(report.loss),
                    .gradient_norm = if_updated(report.gradient_norm),
                    .learning_rate = report.learning_rate,
                    .exchange_s = report.exchange_s,
                    .tokens = stepper_->samples() * static_cast<std::uint64_t>(config_.sequence)});
    if (!updated)
      say("notice: step " + std::to_string(step) +
          ": no target of the batch counts (data.ignored_token): nothing was updated");
    if (report.signals.saver_ready) MUSTER_CHECK(advance_save());
    if (step == config_.steps) break;
    if (report.signals.stop) return stop();
    if (config_.checkpoint_every > 0 && step % config_.checkpoint_every == 0) MUSTER_CHECK(save());
    if (config_.eval_every > 0 && step % config_.eval_every == 0) {
      MUSTER_TRY(const bool go_on, evaluate_now());
      if (!go_on) return stop();
    }
  }
  MUSTER_CHECK(save());
  MUSTER_CHECK(finish_save());   // it counts before the evaluation, which may be long
  MUSTER_CHECK(evaluate_now());  // given up where a stop is asked for: there is nothing more to train
  MUSTER_CHECK(finish());
  say(formatted("done step=%lld/%lld", static_cast<long long>(step_done()),
                static_cast<long long>(config_.steps)) +
      (last_loss_ ? formatted(" loss=%.4f", *last_loss_) : ""));
  return Outcome::finished;
}

Result<std::unique_ptr<Trainer>> Trainer::create(TrainerParts parts) {
  MUSTER_CHECK(check_agreement(parts));
  MUSTER_TRY(parts.config.model, sized_model(parts));
  MUSTER_TRY(const Plan plan, make_plan(parts.config, parts.comm->size(), parts.node_ranks));
  MUSTER_TRY(const auto memories, shared_memories(memory_limits(), *parts.comm));
  MUSTER_CHECK(check_memory(plan, memories));
  MUSTER_TRY(const auto held_out, held_out_loader(parts));
  const Mesh& mesh = plan.layout.mesh;
  const auto stage = static_cast<std::size_t>(mesh.coordinate(Axis::pp, parts.comm->rank()));
  const MemoryPlan& memory = plan.stages[stage].memory;
  auto stepper = with_memory_errors("the model and its optimizer", memory,
                                    [&] { return Stepper::create(parts, plan.layout); });
  MUSTER_CHECK(agree(*parts.comm, stepper ? Result<void>() : tl::unexpected(stepper.error())));
  auto impl = std::make_unique<Impl>(std::move(parts), memory, *std::move(stepper), held_out);
  MUSTER_CHECK(impl->start());
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Result<Outcome> Trainer::run() { return impl_->run(); }
Result<StepReport> Trainer::step() { return impl_->step(); }
Result<Evaluation> Trainer::evaluate() {
  MUSTER_TRY(const auto evaluation, impl_->evaluation());
  return *evaluation;
}
std::int64_t Trainer::steps_done() const { return impl_->stepper().steps_done(); }
Model& Trainer::model() { return impl_->stepper().model(); }
const AdamW& Trainer::optimizer() const { return impl_->stepper().optimizer(); }
const DataParallel& Trainer::replicas() const { return impl_->stepper().replicas(); }

}  // namespace muster::train
