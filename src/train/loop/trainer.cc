#include "train/loop/trainer.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/crypto.h"
#include "base/file.h"
#include "base/text.h"
#include "train/ckpt/saver.h"
#include "train/loop/evaluate.h"
#include "train/loop/model_folder.h"
#include "train/loop/state.h"
#include "train/shard/data_parallel.h"

namespace muster::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char line[512];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

// What every rank must agree on before the first step.
std::string fingerprint(const TrainerParts& parts) {
  json::Object values = to_json(parts.config);
  for (const char* key : {"model.from", "data.train", "data.validation", "data.tokenizer", "output.dir",
                          "checkpoint.dir", "run.threads"}) {
    values.erase(key);  // may be other paths on other nodes
  }
  values["data"] = parts.train->description();
  values["held_out"] = parts.validation != nullptr ? parts.validation->description() : json::Object{};
  return json::dump(values);
}

Result<void> check_agreement(const TrainerParts& parts) {
  MUSTER_TRY(const auto all, parts.comm->gather_text(fingerprint(parts)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    MUSTER_TRY(const json::Object first, json::parse_object(all[0]));
    MUSTER_TRY(const json::Object other, json::parse_object(all[rank]));
    std::string differences;
    for (const auto& [key, value] : first) {
      const auto* there = other.if_contains(key);
      if (there != nullptr && *there == value) continue;
      differences += "; " + std::string(key) + " is " + json::dump(value) + " on rank 0, " +
                     (there != nullptr ? json::dump(*there) : "absent") + " on rank " + std::to_string(rank);
    }
    return fail(ErrorCode::failed_precondition, "the ranks do not run the same thing" + differences);
  }
  return {};
}

// A folder that will be written to much later: an unusable one should end the run before its first step.
Result<void> check_folder(const char* key, const std::string& folder, int rank) {
  if (folder.empty()) return {};
  const auto named = [&](const Error& error) {
    return tl::unexpected(error.with_context(std::string(key) + " = " + folder));
  };
  if (const auto made = make_directories(folder); !made) return named(made.error());
  const std::string probe = folder + "/.writable-" + std::to_string(rank);
  if (const auto written = write_file_atomic(probe, ""); !written) return named(written.error());
  ::unlink(probe.c_str());
  return {};
}

Result<void> check_tokenizer(const std::string& path, const std::string& hash) {
  if (path.empty()) return {};
  MUSTER_TRY(const std::string model, read_file(path));
  const auto own = crypto::hex(crypto::sha256(model));
  if (own == hash) return {};
  return fail(ErrorCode::failed_precondition,
              "data.tokenizer = " + path + " is tokenizer " + own + ", data.train is made with " + hash +
                  "; give the tokenizer.model that muster-data tokenize used");
}

std::uint64_t bytes_of(std::span<const TensorSlice> slices) {
  std::uint64_t sum = 0;
  for (const TensorSlice& piece : slices) sum += piece.bytes.size();
  return sum;
}

// The groups that a rank works in.
struct Groups {
  Mesh mesh;
  std::unique_ptr<Comm> tp;     // other parts of the model, the same part of the batch
  std::unique_ptr<Comm> batch;  // the same part of the model, other parts of the batch
};

Groups make_groups(const Mesh& mesh, Comm& world) {
  return {.mesh = mesh,
          .tp = world.subgroup("tp", mesh.group(Axis::tp, world.rank())),
          .batch = world.subgroup("batch", mesh.batch_group(world.rank()))};
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(TrainerParts parts, Groups groups, Model model, Loader loader, std::optional<Loader> held_out,
       BatchPart share)
      : parts_(std::move(parts)),
        config_(parts_.config),
        comm_(*parts_.comm),
        groups_(std::move(groups)),
        model_(std::move(model)),
        replicas_(model_.table(), static_cast<int>(config_.zero), *groups_.batch),
        optimizer_(model_.table(), parts_.dtype,
                   {.beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .eps = config_.eps,
                    .weight_decay = config_.weight_decay},
                   replicas_.owned()),
        schedule_{.peak = config_.lr,
                  .warmup = config_.warmup,
                  .steps = config_.steps,
                  .final_ratio = config_.lr > 0 ? config_.min_lr / config_.lr : 1.0},
        loader_(loader),
        held_out_(held_out),
        share_(share) {}

  Result<void> start();
  Result<Outcome> run();
  Result<StepReport> step();

  std::int64_t steps_done() const { return step_; }
  Model& model() { return model_; }
  const AdamW& optimizer() const { return optimizer_; }

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
  Result<void> check_ends();
  Result<void> resume(Reader& reader);
  Result<StepResult> accumulate();
  Result<double> gradient_norm();
  Result<Sums> exchange(const StepResult& mine);
  tl::unexpected<Error> not_finite();
  std::string culprit_parameter() const;
  Result<void> evaluate_now();
  Result<void> save();
  Result<void> finish_save();
  void say_saved(const std::optional<SaveReport>& report) const;
  tl::unexpected<Error> step_failed(const Error& error);
  tl::unexpected<Error> resume_failed(const Error& error) const;
  Result<void> finish();
  CheckpointInfo info() const;
  void progress(const StepReport& report);

  TrainerParts parts_;
  const Config& config_;
  Comm& comm_;  // all ranks
  Groups groups_;
  Model model_;
  DataParallel replicas_;
  AdamW optimizer_;
  Schedule schedule_;
  Loader loader_;
  std::optional<Loader> held_out_;
  BatchPart share_;
  Samples samples_;
  std::optional<Saver> saver_;  // with checkpoint.dir

  std::int64_t step_ = 0;       // done
  std::uint64_t consumed_ = 0;  // samples
  std::int64_t saved_step_ = -1;
  double last_loss_ = 0;
  SteadyClock::time_point mark_ = SteadyClock::now();  // of the last line of progress
  std::int64_t mark_step_ = 0;
};

// What is needed only at the end, looked at before the first step; an error of one rank ends all.
Result<void> Trainer::Impl::check_ends() {
  const auto check = [&]() -> Result<void> {
    if (parts_.writer.local_rank == 0)
      MUSTER_CHECK(check_folder("checkpoint.dir", config_.checkpoint_dir, comm_.rank()));
    if (comm_.rank() != 0) return {};
    MUSTER_CHECK(check_folder("output.dir", config_.output_dir, 0));
    if (config_.output_dir.empty()) return {};
    return check_tokenizer(config_.tokenizer, parts_.train->tokenizer_hash());
  };
  const auto mine = check();
  MUSTER_TRY(const auto all, comm_.gather_text(mine ? "" : mine.error().message));
  MUSTER_CHECK(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty())
      return fail(ErrorCode::failed_precondition, "rank " + std::to_string(rank) + ": " + all[rank]);
  }
  return {};
}

// Restores the newest checkpoint or initialises.
Result<void> Trainer::Impl::start() {
  MUSTER_CHECK(check_ends());
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
    MUSTER_CHECK(saver_->reserve(bytes_of(state_slices(model_, &optimizer_, replicas_.written()))));
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
  const auto read = restore_state(reader, model_, &optimizer_);
  MUSTER_TRY(const auto all, comm_.gather_text(read ? "" : read.error().message));
  if (!read) return resume_failed(read.error());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty())
      return resume_failed({ErrorCode::corrupt, "rank " + std::to_string(rank) + ": " + all[rank]});
  }
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
  StepResult sum;
  model_.start_accumulation();
  for (std::uint64_t i = 0; i < share_.count; ++i) {
    MUSTER_CHECK(loader_.samples(consumed_ + share_.first + i * share_.micro, share_.micro, samples_));
    MUSTER_TRY(const StepResult one,
               model_.forward_backward({.tokens = samples_.tokens,
                                        .targets = samples_.targets,
                                        .rows = static_cast<std::int64_t>(share_.micro),
                                        .sequence = static_cast<std::int64_t>(loader_.sequence())}));
    sum.loss_sum += one.loss_sum;
    sum.tokens += one.tokens;
  }
  MUSTER_CHECK(model_.finish_accumulation());
  return sum;
}

// Loss, tokens, requests to stop and states of the save in flight of all ranks, in rank order.
Result<Trainer::Impl::Sums> Trainer::Impl::exchange(const StepResult& mine) {
  const std::array<double, 4> own = {mine.loss_sum, static_cast<double>(mine.tokens),
                                     parts_.stop_requested && parts_.stop_requested() ? 1.0 : 0.0,
                                     !saver_ || saver_->ready() ? 1.0 : 0.0};
  std::vector<double> all(own.size() * static_cast<std::size_t>(comm_.size()));
  MUSTER_CHECK(comm_.all_gather<double>(own, all));
  Sums sums;
  for (std::size_t rank = 0; rank * own.size() < all.size(); ++rank) {
    const double* of = &all[rank * own.size()];
    if (!std::isfinite(of[0])) {
      return fail(ErrorCode::failed_precondition,
                  "step " + std::to_string(step_ + 1) + ": the loss of rank " + std::to_string(rank) +
                      " is " + format("%g", of[0]) +
                      "; nothing was updated, the last checkpoint is good. A lower optim.lr or a "
                      "longer optim.warmup may help");
    }
    sums.stop = sums.stop || of[2] != 0;
    sums.saver_ready = sums.saver_ready && of[3] != 0;
    // The ranks of a tensor-parallel group all have the same.
    if (groups_.mesh.coordinate(Axis::tp, static_cast<int>(rank)) != 0) continue;
    sums.loss += of[0];
    sums.tokens += static_cast<std::int64_t>(of[1]);
  }
  return sums;
}

std::string Trainer::Impl::culprit_parameter() const {
  const auto finite = [&](const Param& param) {
    const Range range{param.offset, param.offset + param.numel};
    const auto all_finite = [](auto values) {
      for (const auto value : values) {
        if (!std::isfinite(value)) return false;
      }
      return true;
    };
    return parts_.dtype == Dtype::f32 ? all_finite(model_.gradients().as<float>(range))
                                      : all_finite(model_.gradients().as<double>(range));
  };
  for (const Param& param : model_.table().params()) {
    if (!finite(param)) return param.name;
  }
  return "";
}

// The summed gradient is not finite. Which rank made it so is found by computing this step once more: no cost
// in a run that goes well.
tl::unexpected<Error> Trainer::Impl::not_finite() {
  std::string where;
  if (accumulate()) {
    if (const auto all = comm_.gather_text(culprit_parameter())) {
      for (std::size_t rank = 0; rank < all->size(); ++rank) {
        if (!(*all)[rank].empty()) where += " of rank " + std::to_string(rank) + " (" + (*all)[rank] + ")";
      }
    }
  }
  if (where.empty()) where = ", as summed over the ranks,";
  return fail(ErrorCode::failed_precondition,
              "step " + std::to_string(step_ + 1) + ": the gradient" + where +
                  " is not finite; nothing was updated, the last checkpoint is good. A "
                  "lower optim.lr or a longer optim.warmup may help");
}

// The global norm: each tensor-parallel part's sum of squares, added in the order of the parts.
Result<double> Trainer::Impl::gradient_norm() {
  MUSTER_TRY(const double mine, replicas_.square_sum(model_.gradients()));
  std::vector<double> parts(static_cast<std::size_t>(groups_.tp->size()));
  MUSTER_CHECK(groups_.tp->all_gather<double>(std::span(&mine, 1), parts));
  return std::sqrt(ordered_sum(parts));
}

Result<Trainer::StepReport> Trainer::Impl::step() {
  MUSTER_TRY(const StepResult mine, accumulate());
  MUSTER_TRY(const Sums sums, exchange(mine));
  FlatBuffer& gradients = model_.gradients();
  MUSTER_CHECK(replicas_.reduce(gradients));
  MUSTER_TRY(const double norm, gradient_norm());
  if (!std::isfinite(norm)) return not_finite();
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

void Trainer::Impl::progress(const StepReport& report) {
  if (step_ % config_.log_every != 0 && step_ != config_.steps && step_ != 1) return;
  const double seconds = seconds_since(mark_) / static_cast<double>(step_ - mark_step_);  // a step
  const double tokens = static_cast<double>(config_.batch * config_.sequence);
  say(format("step=%lld/%lld loss=%.4f grad_norm=%.4f lr=%.3e tokens_per_s=%.0f left_s=%.0f",
             static_cast<long long>(step_), static_cast<long long>(config_.steps), report.loss,
             report.gradient_norm, report.learning_rate, tokens / seconds,
             seconds * static_cast<double>(config_.steps - step_)));
  mark_ = SteadyClock::now();
  mark_step_ = step_;
}

Result<void> Trainer::Impl::evaluate_now() {
  if (!held_out_) return {};
  const auto start = SteadyClock::now();
  MUSTER_TRY(const Evaluation e,
             evaluate(model_, *held_out_, static_cast<std::uint64_t>(config_.eval_windows),
                      static_cast<std::uint64_t>(config_.micro_batch), *groups_.batch));
  say(format("eval step=%lld split=held-out loss=%.4f bits_per_byte=%.4f tokens=%lld bytes=%llu",
             static_cast<long long>(step_), e.loss, e.bits_per_byte, static_cast<long long>(e.tokens),
             static_cast<unsigned long long>(e.bytes)));
  mark_ += SteadyClock::now() - start;  // not counted in tokens_per_s
  return {};
}

CheckpointInfo Trainer::Impl::info() const {
  return {.step = step_,
          .samples = consumed_,
          .tokenizer_hash = parts_.train->tokenizer_hash(),
          .config = to_json(config_),
          .layout = {{"world", comm_.size()},
                     {"replica", groups_.mesh.extent(Axis::replica)},
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
  MUSTER_CHECK(saver_->start(info(), state_slices(model_, &optimizer_, replicas_.written())));
  saved_step_ = step_;
  mark_ += SteadyClock::now() - start;
  return {};
}

Result<void> Trainer::Impl::finish_save() {
  if (!saver_) return {};
  MUSTER_TRY(const auto report, saver_->wait());
  say_saved(report);
  return {};
}

void Trainer::Impl::say_saved(const std::optional<SaveReport>& report) const {
  if (!report) return;
  say("checkpoint step=" + std::to_string(report->step) + " path=" + report->path +
      format(" stall_s=%.3f seconds=%.2f", report->stall_s, report->seconds));
}

Result<void> Trainer::Impl::finish() {
  Result<void> written;
  if (!config_.output_dir.empty() && groups_.batch->rank() == 0) {
    written = write_model(config_.output_dir, model_, config_, info(), parts_.writer, *groups_.tp);
    if (written) say("model step=" + std::to_string(step_) + " path=" + config_.output_dir);
  }
  MUSTER_TRY(const auto answers, comm_.gather_text(written ? "" : written.error().message));
  MUSTER_CHECK(written);
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty())
      return fail(ErrorCode::io,
                  "rank " + std::to_string(rank) + " could not write the model: " + answers[rank]);
  }
  return {};
}

// A step that is not finite fails on all ranks alike: what is being saved is of a good step, so it is
// finished.
tl::unexpected<Error> Trainer::Impl::step_failed(const Error& error) {
  if (error.code == ErrorCode::failed_precondition) {
    if (const auto saved = finish_save(); !saved)
      return fail(error.code, error.message + "; and " + saved.error().message);
  }
  return tl::unexpected(error);
}

Result<Outcome> Trainer::Impl::run() {
  say(format(
      "start ranks=%d replica=%d tp=%d zero=%lld parameters=%lld steps=%lld batch=%lld micro_batch=%lld "
      "sequence=%lld windows=%llu",
      comm_.size(), groups_.mesh.extent(Axis::replica), groups_.mesh.extent(Axis::tp),
      static_cast<long long>(config_.zero), static_cast<long long>(parameter_count(config_.model)),
      static_cast<long long>(config_.steps), static_cast<long long>(config_.batch),
      static_cast<long long>(config_.micro_batch), static_cast<long long>(config_.sequence),
      static_cast<unsigned long long>(loader_.windows())));
  MUSTER_CHECK(evaluate_now());
  mark_ = SteadyClock::now();
  mark_step_ = step_;
  while (step_ < config_.steps) {
    const auto made = step();
    if (!made) return step_failed(made.error());
    const StepReport report = *made;
    progress(report);
    if (report.saver_ready && saver_ && saver_->in_flight()) {
      MUSTER_TRY(const auto saved, saver_->advance());
      say_saved(saved);
    }
    if (report.stop && step_ < config_.steps) {
      MUSTER_CHECK(save());
      MUSTER_CHECK(finish_save());
      say("stopped at step " + std::to_string(step_) + " of " + std::to_string(config_.steps) +
          (config_.checkpoint_dir.empty() ? "; nothing saved: checkpoint.dir is empty"
                                          : "; start again to go on"));
      return Outcome::stopped;
    }
    if (step_ < config_.steps && config_.checkpoint_every > 0 && step_ % config_.checkpoint_every == 0)
      MUSTER_CHECK(save());
    if (step_ < config_.steps && config_.eval_every > 0 && step_ % config_.eval_every == 0)
      MUSTER_CHECK(evaluate_now());
  }
  MUSTER_CHECK(save());
  MUSTER_CHECK(evaluate_now());
  MUSTER_CHECK(finish_save());
  MUSTER_CHECK(finish());
  say(format("done step=%lld/%lld loss=%.4f", static_cast<long long>(step_),
             static_cast<long long>(config_.steps), last_loss_));
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
  MUSTER_TRY(const Mesh mesh, Mesh::create(parts.comm->size(), config.mesh));
  MUSTER_TRY(const BatchPart share, split_batch(static_cast<std::uint64_t>(config.batch),
                                                static_cast<std::uint64_t>(config.micro_batch),
                                                mesh.batch_size(), mesh.batch_index(parts.comm->rank())));
  const auto sequence = static_cast<std::uint64_t>(config.sequence),
             seed = static_cast<std::uint64_t>(config.seed);
  MUSTER_TRY(const Loader loader, Loader::create(*parts.train, sequence, seed));
  std::optional<Loader> held_out;
  if (parts.validation != nullptr) {
    if (parts.validation->tokenizer_hash() != parts.train->tokenizer_hash()) {
      return fail(ErrorCode::failed_precondition, "data.validation is made with tokenizer " +
                                                      parts.validation->tokenizer_hash() +
                                                      ", data.train with " + parts.train->tokenizer_hash());
    }
    auto held = Loader::create(*parts.validation, sequence, seed);
    if (!held) return tl::unexpected(held.error().with_context("data.validation"));
    held_out = *held;
  }
  auto groups = make_groups(mesh, *parts.comm);
  MUSTER_TRY(Model model,
             Model::create(config.model, parts.dtype, {groups.tp.get(), config.sequence_parallel}));
  auto impl =
      std::make_unique<Impl>(std::move(parts), std::move(groups), std::move(model), loader, held_out, share);
  MUSTER_CHECK(impl->start());
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Result<Outcome> Trainer::run() { return impl_->run(); }
Result<Trainer::StepReport> Trainer::step() { return impl_->step(); }
std::int64_t Trainer::steps_done() const { return impl_->steps_done(); }
Model& Trainer::model() { return impl_->model(); }
const AdamW& Trainer::optimizer() const { return impl_->optimizer(); }

}  // namespace muster::train
