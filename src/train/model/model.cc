#include "train/model/model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/assert.h"
#include "train/model/detail/model_detail.h"
#include "train/model/detail/types.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

static_assert(kIgnoredTarget == kernels::kIgnored);

using detail::Shape;

Result<void> check_values(std::span<const std::int64_t> values, std::string_view what, std::int64_t lowest,
                          std::int64_t vocab) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < lowest || values[i] >= vocab) {
      return fail(ErrorCode::invalid_argument, std::string(what) + " " + std::to_string(i) +
                                                   " of the batch is " + std::to_string(values[i]) +
                                                   "; the model's vocabulary has " + std::to_string(vocab) +
                                                   " (is this the data's tokenizer?)");
    }
  }
  return {};
}

Result<Shape> shape_of(const ModelConfig& config, const Batch& batch, bool with_targets) {
  if (batch.rows < 1 || batch.sequence < 1 || batch.sequence > config.max_sequence) {
    return fail(
        ErrorCode::invalid_argument,
        "a batch of " + std::to_string(batch.rows) + " x " + std::to_string(batch.sequence) +
            " tokens; it needs at least 1 x 1 and sequences of at most model.max_sequence, which is " +
            std::to_string(config.max_sequence));
  }
  const Shape shape{.rows = batch.rows, .sequence = batch.sequence};
  const auto expected = static_cast<std::size_t>(shape.tokens());
  if (batch.tokens.size() != expected || (with_targets && batch.targets.size() != expected)) {
    return fail(ErrorCode::invalid_argument, "a batch of " + std::to_string(batch.rows) + " x " +
                                                 std::to_string(batch.sequence) + " with " +
                                                 std::to_string(batch.tokens.size()) + " tokens and " +
                                                 std::to_string(batch.targets.size()) +
                                                 " targets; both must be " + std::to_string(expected));
  }
  MUSTER_CHECK(check_values(batch.tokens, "token", 0, config.vocab));
  if (with_targets) MUSTER_CHECK(check_values(batch.targets, "target", kIgnoredTarget, config.vocab));
  return shape;
}

// Refuses begins that do not rise or do not lie in the row.
Result<void> find_documents(const Batch& batch, detail::Documents& documents) {
  documents.parts.clear();
  documents.positions.resize(batch.tokens.size());
  if (batch.documents.size() != static_cast<std::size_t>(batch.rows))
    return fail(ErrorCode::invalid_argument, "documents of " + std::to_string(batch.documents.size()) +
                                                 " rows for a batch of " + std::to_string(batch.rows));
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    std::int64_t begin = 0;
    const auto end_at = [&](std::int64_t end) {
      if (end > begin) documents.parts.push_back({row, begin, end - begin});
      for (; begin < end; ++begin)
        documents.positions[static_cast<std::size_t>(row * batch.sequence + begin)] =
            begin - documents.parts.back().begin;
    };
    for (const std::int64_t next : batch.documents[static_cast<std::size_t>(row)]) {
      if (next < begin || next >= batch.sequence)
        return fail(ErrorCode::invalid_argument, "a document of row " + std::to_string(row) + " begins at " +
                                                     std::to_string(next) + ", behind or outside of the row");
      end_at(next);
    }
    end_at(batch.sequence);
  }
  return {};
}

std::int64_t count_valid(std::span<const std::int64_t> targets) {
  return static_cast<std::int64_t>(targets.size()) - std::ranges::count(targets, kIgnoredTarget);
}

template <typename T>
void init_all(const ParamTable& table, FlatBuffer& parameters, std::uint64_t seed) {
  const auto blocks = table.blocks();
  const auto init = [&](Range range) {
    const Param& param = table.param_at(range.begin);
    init_param<T>(table.config(), param, seed, range.begin - param.offset, parameters.as<T>(range));
  };
  at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (const Range part : within(parameters.pieces(), blocks[static_cast<std::size_t>(i)])) init(part);
    }
  });
}

template <typename T>
void fold(const ParamTable& table, FlatBuffer& gradients, Range range) {
  const auto own = gradients.as<T>(range);
  const auto tail = gradients.as<T>({table.numel() + range.begin, table.numel() + range.end});
  for (std::size_t i = 0; i < tail.size(); ++i) {
    own[i] += tail[i];
    tail[i] = 0;
  }
}

}  // namespace

ModelPart model_part(const ModelConfig& config, const ModelOptions& options) {
  ModelPart part = whole_model(config);
  if (options.layers.size() > 0) part.layers = options.layers;
  if (options.tp != nullptr) {
    part.tp_rank = options.tp->rank();
    part.tp = options.tp->size();
  }
  return part;
}

Result<ActivationCheckpointing> parse_activation_checkpointing(std::string_view name) {
  for (const auto known :
       {ActivationCheckpointing::none, ActivationCheckpointing::selective, ActivationCheckpointing::full}) {
    if (name == to_string(known)) return known;
  }
  return fail(ErrorCode::invalid_argument, "activation checkpointing \"" + std::string(name) +
                                               "\" does not exist; there are none, selective and full");
}

std::string_view to_string(ActivationCheckpointing kind) {
  switch (kind) {
    case ActivationCheckpointing::none:
      return "none";
    case ActivationCheckpointing::selective:
      return "selective";
    case ActivationCheckpointing::full:
      return "full";
  }
  return "?";
}

Result<Model> Model::create(const ModelConfig& config, const ModelOptions& options) {
  MUSTER_TRY(const ModelConfig checked, validated(config));
  MUSTER_CHECK(check_tensor_parallel(checked, options.tp == nullptr ? 1 : options.tp->size()));
  try {
    auto weights =
        std::make_unique<Weights>(ParamTable(checked, model_part(checked, options)), options.dtype);
    return create(std::move(weights), options);
  } catch (const std::exception& e) {  // bad_alloc
    return fail(ErrorCode::resource_exhausted, std::string("no memory for the model: ") + e.what());
  }
}

Result<Model> Model::create(std::unique_ptr<Weights> weights, const ModelOptions& options) {
  MUSTER_ASSERT(weights->dtype() == options.dtype);
  try {
    const at::NoGradGuard no_grad;
    return Model(std::make_unique<Detail>(std::move(weights), options));
  } catch (const std::exception& e) {  // bad_alloc, c10::Error
    return fail(ErrorCode::resource_exhausted, std::string("no memory for the model: ") + e.what());
  }
}

Model::Model(std::unique_ptr<Detail> detail) : detail_(std::move(detail)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const ParamTable& Model::table() const { return detail_->weights->table(); }
Dtype Model::dtype() const { return detail_->weights->dtype(); }
FlatBuffer& Model::parameters() { return detail_->weights->parameters(); }
const FlatBuffer& Model::parameters() const { return detail_->weights->parameters(); }
FlatBuffer& Model::gradients() { return detail_->weights->gradients(); }
const FlatBuffer& Model::gradients() const { return detail_->weights->gradients(); }

void Model::init_parameters(std::uint64_t seed) { train::init_parameters(table(), parameters(), seed); }

void Model::start_accumulation() { detail_->weights->start_accumulation(); }

Result<void> Model::check(const Batch& batch) const {
  MUSTER_CHECK(shape_of(table().config(), batch, !batch.targets.empty()));
  return {};
}

Result<void> Model::forward(int slot, const Batch& batch) {
  MUSTER_TRY(Shape shape, shape_of(table().config(), batch, true));
  const at::NoGradGuard no_grad;
  Detail::Slot& of = detail_->slot(slot);
  if (!batch.documents.empty()) {
    MUSTER_CHECK(find_documents(batch, of.documents));
    shape.documents = &of.documents;
  }
  detail_->forward(of, batch.tokens.data(), shape);
  return detail_->status();
}

Result<StepResult> Model::backward(int slot, const Batch& batch) {
  MUSTER_TRY(Shape shape, shape_of(table().config(), batch, true));
  const at::NoGradGuard no_grad;
  Detail& d = *detail_;
  Detail::Slot& of = d.slot(slot);
  if (!batch.documents.empty()) shape.documents = &of.documents;  // as forward() found them
  at::Tensor gradient = d.stream(of.gradient, shape);
  StepResult result;
  if (table().has_head()) {
    result = {.loss_sum = d.loss(of, batch.targets.data(), &gradient, shape),
              .tokens = count_valid(batch.targets)};
  }
  d.backward(of, batch.tokens.data(), gradient, shape);
  MUSTER_CHECK(d.status());
  return result;
}

Result<StepResult> Model::forward_backward(const Batch& batch) {
  MUSTER_CHECK(forward(0, batch));
  return backward(0, batch);
}

std::span<std::byte> Model::input(int slot, const Batch& batch) {
  const at::Tensor x =
      detail_->stream(detail_->slot(slot).input, {.rows = batch.rows, .sequence = batch.sequence});
  return {static_cast<std::byte*>(x.data_ptr()), x.nbytes()};
}

std::span<const std::byte> Model::output(int slot) const {
  const at::Tensor& x = detail_->slots[static_cast<std::size_t>(slot)].streams.back();
  return {static_cast<const std::byte*>(x.data_ptr()), x.nbytes()};
}

std::span<std::byte> Model::gradient(int slot, const Batch& batch) {
  const at::Tensor d =
      detail_->stream(detail_->slot(slot).gradient, {.rows = batch.rows, .sequence = batch.sequence});
  return {static_cast<std::byte*>(d.data_ptr()), d.nbytes()};
}

// The norms, held pieces of them, in one message.
Result<void> Model::finish_accumulation() {
  Detail& d = *detail_;
  if (!d.context.seam.cuts_rows()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const Param& param : table().params()) {
    if (param.spec->tp_axis != kNotCut) continue;
    for (const Range part : within(gradients().pieces(), {param.offset, param.offset + param.numel})) {
      norms.push_back(at::from_blob(gradients().bytes(part).data(), {part.size()},
                                    detail::scalar_type(gradients().dtype())));
    }
  }
  if (norms.empty()) return {};  // on all ranks of the group: they hold the same pieces (same_norm_pieces())
  const at::Tensor all = at::cat(norms);
  d.context.seam.sum(all);
  std::int64_t at = 0;
  for (at::Tensor& norm : norms) {
    norm.copy_(all.narrow(0, at, norm.numel()));
    at += norm.numel();
  }
  return d.status();
}

Result<StepResult> Model::loss(int slot, const Batch& batch) {
  if (!table().has_head()) return StepResult{};
  MUSTER_TRY(const Shape shape, shape_of(table().config(), batch, true));
  const at::NoGradGuard no_grad;
  const double loss = detail_->loss(detail_->slot(slot), batch.targets.data(), nullptr, shape);
  MUSTER_CHECK(detail_->status());
  return StepResult{.loss_sum = loss, .tokens = count_valid(batch.targets)};
}

Result<StepResult> Model::evaluate(const Batch& batch) {
  MUSTER_CHECK(forward(0, batch));
  return loss(0, batch);
}

Result<void> Model::logits(const Batch& batch, std::span<double> out) {
  MUSTER_TRY(const Shape shape, shape_of(table().config(), batch, false));
  const std::int64_t vocab = table().config().vocab;
  if (static_cast<std::int64_t>(out.size()) != shape.tokens() * vocab) {
    return fail(ErrorCode::invalid_argument, "room for " + std::to_string(out.size()) +
                                                 " logits; there are " +
                                                 std::to_string(shape.tokens() * vocab));
  }
  MUSTER_ASSERT(detail_->context.seam.alone());
  const at::NoGradGuard no_grad;
  const at::Tensor x = detail_->forward(detail_->slot(0), batch.tokens.data(), shape);
  at::from_blob(out.data(), {shape.tokens(), vocab}, at::kDouble).copy_(detail_->logits(x));
  return {};
}

void Model::watch(bool on) {
  detail_->watching = on;
  detail_->found = {};
}

const Model::NotFinite& Model::not_finite() const { return detail_->found; }

void init_parameters(const ParamTable& table, FlatBuffer& parameters, std::uint64_t seed) {
  switch (parameters.dtype()) {
    case Dtype::f32:
      return init_all<float>(table, parameters, seed);
    case Dtype::f64:
      return init_all<double>(table, parameters, seed);
    case Dtype::bf16:
      return init_all<BFloat16>(table, parameters, seed);
  }
}

void fold_tied_gradient(const ParamTable& table, FlatBuffer& gradients, std::span<const Range> pieces) {
  if (table.gradient_numel() == table.numel()) return;
  const Range embedding{0, table.params().front().numel};  // it stands first
  for (const Range range : within(pieces, embedding)) {
    if (gradients.dtype() == Dtype::f32) {
      fold<float>(table, gradients, range);
    } else {
      fold<double>(table, gradients, range);
    }
  }
}

}  // namespace muster::train
