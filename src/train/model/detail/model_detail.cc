#include "train/model/detail/model_detail.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "train/model/detail/types.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

using detail::Shape;
using detail::Weight;
using NameList = std::vector<std::string>;

bool all_finite(const at::Tensor& values) { return at::isfinite(values).all().item<bool>(); }

}  // namespace

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
    if (of_ != Of::gradient) detail_.weights->release(unit_.parameters);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  bool fresh() const { return gradient_.fresh; }

  // The gradient is complete.
  void reduce() {
    if (detail_.watching) detail_.look_at(unit_, gradient_.data);
    detail_.weights->reduce(unit_.gradients);
  }

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
  context.drops_cheap = how.activation_checkpointing == ActivationCheckpointing::selective;
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
    head.rows_max = part_of(table.config().vocab, 0, table.part().tp).size();  // the first has most
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
  if (!keeps_inputs_only()) slot.saved.resize(layers.size());
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
    run_layer(i, x, &y, keeps_inputs_only() ? recomputed : slot.saved[i], shape);
    x = y;
    look_at(x, static_cast<std::int64_t>(i));
    if (!status()) break;  // what follows would be of no use
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
  Lease lease(*this, *norm_unit, of);
  const double sum = head.loss(slot.streams.back(), shape, targets, head_saved, d, lease.fresh(), context);
  if (d != nullptr) {
    lease.reduce();
    if (tied) tied->reduce();
  }
  return sum;
}

// d: the gradient of the stream behind the last layer on entry, of the one into the first on return.
void Model::Detail::backward(Slot& slot, const std::int64_t* tokens, const at::Tensor& behind, Shape shape) {
  at::Tensor d = behind;
  for (std::size_t i = layers.size(); i-- > 0 && status();) {
    Lease lease(*this, layer_units[i], Lease::Of::both);
    const bool full = keeps_inputs_only();
    LayerSaved& saved = full ? recomputed : slot.saved[i];
    if (full) run_layer(i, slot.streams[i], nullptr, saved, shape);
    layers[i].mlp.backward(d, shape, saved.mlp, lease.fresh(), context);
    layers[i].attention.backward(d, shape, saved.attention, lease.fresh(), context);
    lease.reduce();
  }
  if (embedding_unit && status()) {
    Lease lease(*this, *embedding_unit, Lease::Of::gradient);
    embedding.backward(tokens, shape, d, lease.fresh(), context);
    lease.reduce();
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

}  // namespace muster::train
