#include "train/model/model.h"

#include <unistd.h>

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
using detail::Weight;
using NameList = std::vector<std::string>;

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

std::string gib(double bytes) { return std::to_string(std::llround(bytes / (1 << 30))) + " GiB"; }

// Memory is overcommitted: without this look, a model that is too large would be killed while it is being
// cleared.
Result<void> check_memory(const ModelConfig& config, const ModelOptions& options) {
  const PartSize size = part_size(config, part_of(config, options));
  const auto needed =
      static_cast<double>(size.parameters + size.gradients) * static_cast<double>(size_of(options.dtype));
  const double present =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (needed <= present) return {};
  return fail(ErrorCode::resource_exhausted, "a model of " + std::to_string(parameter_count(config)) +
                                                 " parameters needs " + gib(needed) +
                                                 " for parameters and gradients; this machine has " +
                                                 gib(present) + ". Choose a smaller model");
}

template <typename T>
void init_all(const ParamTable& table, FlatBuffer& parameters, std::uint64_t seed) {
  const auto blocks = table.blocks();
  const auto init = [&](Range range) {
    const auto behind = std::ranges::upper_bound(table.params(), range.begin, {}, &Param::offset);
    const Param& param = *(behind - 1);
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

bool all_finite(const at::Tensor& values) { return at::isfinite(values).all().item<bool>(); }

}  // namespace

ModelPart part_of(const ModelConfig& config, const ModelOptions& options) {
  ModelPart part = whole_model(config);
  if (options.layers.size() > 0) part.layers = options.layers;
  if (options.tp != nullptr) {
    part.tp_rank = options.tp->rank();
    part.tp = options.tp->size();
  }
  return part;
}

Result<Recompute> parse_recompute(std::string_view name) {
  for (const Recompute known : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (name == to_string(known)) return known;
  }
  return fail(ErrorCode::invalid_argument, "activation checkpointing \"" + std::string(name) +
                                               "\" does not exist; there are none, selective and full");
}

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "?";
}

class Model::Detail::Lease {
 public:
  enum class Of { values, gradient, both };
  Lease(Detail& detail, Unit& unit, Of of) : detail_(detail), unit_(unit), of_(of) {
    std::byte* values = of == Of::gradient ? nullptr : detail.weights->acquire(unit.parameters);
    if (of != Of::values) gradient_ = detail.weights->gradient(unit.gradients);
    const auto point = [&](at::Tensor& view, std::byte* unit_begin, const View& what, Dtype dtype) {
      std::byte* place = unit_begin + what.offset * size_of(dtype);
      if (!view.defined() || view.data_ptr() != place)
        view = at::from_blob(place, what.shape, detail::scalar_type(dtype));
    };
    const Dtype dtype = detail.weights->dtype();
    for (const View& view : unit.views) {
      if (of != Of::gradient) point(view.weight->value, values, view, dtype);
      if (of != Of::values) point(view.weight->gradient, gradient_.data, view, wide(dtype));
    }
  }
  ~Lease() {
    if (of_ != Of::values) {
      if (detail_.watching) detail_.look_at(unit_, gradient_.data);
      detail_.weights->reduce(unit_.gradients);
    }
    if (of_ != Of::gradient) detail_.weights->release(unit_.parameters);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  bool fresh() const { return gradient_.fresh; }

 private:
  Detail& detail_;
  Unit& unit_;
  const Of of_;
  Weights::Gradient gradient_{nullptr, true};
};

// Names that follow each other in the table are one matrix.
Model::Detail::Unit Model::Detail::unit_of(Range parameters, Range gradients,
                                           const std::vector<std::pair<Weight*, NameList>>& list) const {
  Unit unit{.parameters = parameters, .gradients = gradients, .views = {}};
  for (const auto& [weight, names] : list) {
    const Param& first = weights->table().at(names.front());
    View view{.weight = weight, .offset = first.offset - parameters.begin, .shape = first.shape};
    std::int64_t end = first.offset + first.numel;
    for (std::size_t i = 1; i < names.size(); ++i) {
      const Param& next = weights->table().at(names[i]);
      MUSTER_ASSERT(next.offset == end && next.shape[1] == view.shape[1]);
      view.shape[0] += next.shape[0];
      end += next.numel;
    }
    unit.views.push_back(std::move(view));
  }
  return unit;
}

Model::Detail::Detail(std::unique_ptr<Weights> held, const ModelOptions& how)
    : weights(std::move(held)),
      options(how),
      rotary(detail::make_rotary(weights->table().config(), detail::scalar_type(wide(how.dtype)))) {
  const ParamTable& table = weights->table();
  const ModelConfig* c = &table.local();
  context.seam = detail::Seam(how.tp, how.sequence_parallel);
  context.drops_cheap = how.recompute == Recompute::selective;
  auto unit = table.units().begin();
  const std::string embedding_name = table.params().front().name;
  if (table.has_embedding()) {
    embedding.first = table.params().front().box.start[0];
    embedding_unit = unit_of(*unit, *unit, {{&embedding.table, {embedding_name}}});
    ++unit;
  }
  layers.resize(static_cast<std::size_t>(c->layers));
  for (std::size_t i = 0; i < layers.size(); ++i, ++unit) {
    auto& [attention, mlp] = layers[i];
    attention.config = mlp.config = c;
    attention.rotary = &rotary;
    const std::string at =
        "model.layers." + std::to_string(table.part().layers.begin + static_cast<std::int64_t>(i)) + ".";
    layer_units.push_back(unit_of(
        *unit, *unit,
        {{&attention.norm, {at + "input_layernorm.weight"}},
         {&attention.qkv,
          {at + "self_attn.q_proj.weight", at + "self_attn.k_proj.weight", at + "self_attn.v_proj.weight"}},
         {&attention.output, {at + "self_attn.o_proj.weight"}},
         {&mlp.norm, {at + "post_attention_layernorm.weight"}},
         {&mlp.gate_up, {at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"}},
         {&mlp.down, {at + "mlp.down_proj.weight"}}}));
  }
  if (table.has_head()) {
    head.config = c;
    const bool tied = table.config().tied;
    std::vector<std::pair<Weight*, NameList>> behind = {{&head.norm, {"model.norm.weight"}}};
    if (!tied) behind.push_back({&head.output, {"lm_head.weight"}});
    norm_unit = unit_of(*unit, *unit, behind);
    ++unit;
    const Param& vocabulary = tied ? table.at("model.embed_tokens.weight") : table.at("lm_head.weight");
    head.first = vocabulary.box.start[0];
    const Range values{vocabulary.offset, vocabulary.offset + vocabulary.numel};
    const Range tail{table.numel(), table.gradient_numel()};
    if (tied)
      tied_unit = unit_of(values, table.has_embedding() ? tail : values, {{&head.output, {vocabulary.name}}});
  }
  if (!weights->whole()) return;
  // Nothing is gathered: the views stay where they are, for whoever uses the blocks alone.
  for (std::optional<Unit>* one : {&embedding_unit, &norm_unit, &tied_unit}) {
    if (*one) const Lease lease(*this, **one, Lease::Of::both);
  }
  for (Unit& layer : layer_units) const Lease lease(*this, layer, Lease::Of::both);
}

Model::Detail::Slot& Model::Detail::slot(int number) {
  const auto index = static_cast<std::size_t>(number);
  if (slots.size() <= index) slots.resize(index + 1);
  Slot& slot = slots[index];
  slot.outputs.resize(layers.size());
  slot.streams.resize(layers.size() + 1);
  if (options.recompute != Recompute::full) slot.saved.resize(layers.size());
  return slot;
}

at::Tensor Model::Detail::stream(detail::Buffer& buffer, Shape shape) const {
  return buffer.shaped(detail::scalar_type(weights->dtype()),
                       {context.seam.rows(shape.tokens()).size(), weights->table().config().width});
}

void Model::Detail::run_layer(std::size_t layer, const at::Tensor& x, at::Tensor* y, LayerSaved& saved,
                              Shape shape) {
  at::Tensor middle = stream(saved.middle, shape);
  layers[layer].attention.forward(x, &middle, shape, saved.attention, context);
  layers[layer].mlp.forward(middle, y, shape, saved.mlp, context);
}

at::Tensor Model::Detail::forward(Slot& slot, const std::int64_t* tokens, Shape shape) {
  at::Tensor x = stream(slot.input, shape);
  if (embedding_unit) {
    const Lease lease(*this, *embedding_unit, Lease::Of::values);
    embedding.forward(tokens, shape, x, context);
    look_at(x, -1);  // a later stage's input has been looked at by the stage that made it
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Lease lease(*this, layer_units[i], Lease::Of::values);
    at::Tensor y = stream(slot.outputs[i], shape);
    slot.streams[i] = x;
    run_layer(i, x, &y, options.recompute == Recompute::full ? again : slot.saved[i], shape);
    x = y;
    look_at(x, static_cast<std::int64_t>(i));
  }
  slot.streams.back() = x;
  return x;
}

at::Tensor Model::Detail::logits(const at::Tensor& x) {
  std::optional<Lease> tied;
  if (tied_unit) tied.emplace(*this, *tied_unit, Lease::Of::values);
  const Lease lease(*this, *norm_unit, Lease::Of::values);
  return head.logits(x, head_saved, context);
}

double Model::Detail::loss(Slot& slot, const std::int64_t* targets, at::Tensor* d, Shape shape) {
  const Lease::Of of = d == nullptr ? Lease::Of::values : Lease::Of::both;
  std::optional<Lease> tied;
  if (tied_unit) tied.emplace(*this, *tied_unit, of);
  const Lease lease(*this, *norm_unit, of);
  return head.loss(slot.streams.back(), shape, targets, head_saved, d, lease.fresh(), context);
}

// d: the gradient of the stream behind the last layer on entry, of the one into the first on return.
void Model::Detail::backward(Slot& slot, const std::int64_t* tokens, const at::Tensor& behind, Shape shape) {
  at::Tensor d = behind;
  for (std::size_t i = layers.size(); i-- > 0;) {
    const Lease lease(*this, layer_units[i], Lease::Of::both);
    const bool full = options.recompute == Recompute::full;
    LayerSaved& saved = full ? again : slot.saved[i];
    if (full) run_layer(i, slot.streams[i], nullptr, saved, shape);
    layers[i].mlp.backward(d, shape, saved.mlp, lease.fresh(), context);
    layers[i].attention.backward(d, shape, saved.attention, lease.fresh(), context);
  }
  if (embedding_unit) {
    const Lease lease(*this, *embedding_unit, Lease::Of::gradient);
    embedding.backward(tokens, shape, d, lease.fresh(), context);
  }
  weights->end_micro_batch();
}

Result<void> Model::Detail::status() const {
  MUSTER_CHECK(context.seam.status());
  return weights->status();
}

void Model::Detail::look_at(const at::Tensor& x, std::int64_t layer) {
  if (!watching || !found.where.empty() || all_finite(x)) return;
  const std::int64_t global = weights->table().part().layers.begin + layer;
  found = {.backward = false,
           .order = global + 1,
           .where = layer < 0 ? "model.embed_tokens" : "model.layers." + std::to_string(global)};
}

void Model::Detail::look_at(const Unit& unit, std::byte* gradient) {
  if (!found.where.empty()) return;
  const ParamTable& table = weights->table();
  for (const Param& param : table.params()) {
    const std::int64_t at = param.offset - unit.parameters.begin;
    if (param.offset < unit.parameters.begin || param.offset >= unit.parameters.end) continue;
    const Dtype dtype = weights->gradients().dtype();
    const auto values =
        at::from_blob(gradient + at * size_of(dtype), {param.numel}, detail::scalar_type(dtype));
    if (all_finite(values)) continue;
    const auto layers_behind = [&](std::int64_t layer) { return table.config().layers - layer; };
    const auto unit_number = std::ranges::find(layer_units, unit.parameters, &Unit::parameters);
    found = {.backward = true,
             .order = unit_number != layer_units.end()
                          ? layers_behind(table.part().layers.begin + (unit_number - layer_units.begin()))
                      : unit.gradients == (embedding_unit ? embedding_unit->gradients : Range{-1, -1})
                          ? layers_behind(-1)
                          : 0,
             .where = param.name};
    return;
  }
}

Result<Model> Model::create(const ModelConfig& config, const ModelOptions& options) {
  MUSTER_TRY(const ModelConfig checked, validated(config));
  MUSTER_CHECK(check_tensor_parallel(checked, options.tp == nullptr ? 1 : options.tp->size()));
  MUSTER_CHECK(check_memory(checked, options));
  try {
    auto weights = std::make_unique<Weights>(ParamTable(checked, part_of(checked, options)), options.dtype);
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
  if (norms.empty()) return {};  // on all ranks of the group: they hold the same pieces
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
