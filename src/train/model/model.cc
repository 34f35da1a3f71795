#include "train/model/model.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/assert.h"
#include "train/model/detail/model_detail.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

static_assert(kIgnoredTarget == kernels::kIgnored);

using detail::Shape;
using detail::Weight;

ModelPart part_of_rank(const ModelConfig& config, const TensorParallel& tensor_parallel) {
  ModelPart part = whole_model(config);
  if (tensor_parallel.group != nullptr) {
    part.tp_rank = tensor_parallel.group->rank();
    part.tp = tensor_parallel.group->size();
  }
  return part;
}

at::Tensor view(FlatBuffer& buffer, std::int64_t offset, std::vector<std::int64_t> shape) {
  return at::from_blob(buffer.data() + offset * size_of(buffer.dtype()), shape,
                       detail::scalar_type(buffer.dtype()));
}

// A tensor of the table, or several that follow each other, as one matrix.
class Views {
 public:
  Views(const ParamTable& table, FlatBuffer& parameters, FlatBuffer& gradients)
      : table_(table), parameters_(parameters), gradients_(gradients) {}

  Weight of(const std::string& name) const { return joined({name}); }

  Weight joined(const std::vector<std::string>& names) const {
    const Param& first = table_.at(names.front());
    std::vector<std::int64_t> shape = first.shape;
    std::int64_t end = first.offset + first.numel;
    for (std::size_t i = 1; i < names.size(); ++i) {
      const Param& next = table_.at(names[i]);
      MUSTER_ASSERT(next.offset == end && next.shape[1] == shape[1]);
      shape[0] += next.shape[0];
      end += next.numel;
    }
    return {view(parameters_, first.offset, shape), view(gradients_, first.offset, shape)};
  }

  // The tied head: the embedding's values, a gradient of its own in the tail.
  Weight tied_head() const {
    const Param& embedding = table_.params().front();
    return {view(parameters_, embedding.offset, embedding.shape),
            view(gradients_, table_.numel(), embedding.shape)};
  }

 private:
  const ParamTable& table_;
  FlatBuffer& parameters_;
  FlatBuffer& gradients_;
};

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
  const Shape shape{batch.rows, batch.sequence};
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

std::int64_t count_valid(std::span<const std::int64_t> targets) {
  return static_cast<std::int64_t>(targets.size()) - std::ranges::count(targets, kIgnoredTarget);
}

std::string gib(double bytes) { return std::to_string(std::llround(bytes / (1 << 30))) + " GiB"; }

// Memory is overcommitted: without this look, a model that is too large would be killed while it is being
// cleared.
Result<void> check_memory(const ModelConfig& config, int tp, Dtype dtype) {
  const std::int64_t count = parameter_count(config), tail = config.tied ? config.vocab * config.width : 0;
  const double needed = static_cast<double>((2 * count + tail) * size_of(dtype)) / tp;
  const double present =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (needed <= present) return {};
  return fail(ErrorCode::resource_exhausted, "a model of " + std::to_string(count) + " parameters needs " +
                                                 gib(needed) +
                                                 " for parameters and gradients; this machine has " +
                                                 gib(present) + ". Choose a smaller model");
}

template <typename T>
void init_all(const ParamTable& table, FlatBuffer& parameters, std::uint64_t seed) {
  at::parallel_for(
      0, static_cast<std::int64_t>(table.blocks().size()), 8, [&](std::int64_t begin, std::int64_t end) {
        for (const Range block :
             table.blocks().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))) {
          const auto behind = std::ranges::upper_bound(table.params(), block.begin, {}, &Param::offset);
          const Param& param = *(behind - 1);
          init_param<T>(table.config(), param, seed, block.begin - param.offset, parameters.as<T>(block));
        }
      });
}

template <typename T>
void fold(const ParamTable& table, FlatBuffer& gradients, Range range) {
  const std::int64_t numel = table.params().front().numel;  // the embedding stands first
  const Range part{std::min(range.begin, numel), std::min(range.end, numel)};
  const auto own = gradients.as<T>(part);
  const auto tail = gradients.as<T>({table.numel() + part.begin, table.numel() + part.end});
  for (std::size_t i = 0; i < tail.size(); ++i) {
    own[i] += tail[i];
    tail[i] = 0;
  }
}

}  // namespace

Model::Detail::Detail(const ModelConfig& config, Dtype type, const TensorParallel& tensor_parallel)
    : table(config, part_of_rank(config, tensor_parallel)),
      dtype(type),
      parameters(table.numel(), type),
      gradients(table.gradient_numel(), type),
      rotary(detail::make_rotary(config, detail::scalar_type(type))) {
  const Views views(table, parameters, gradients);
  const ModelConfig* c = &table.local();
  context.seam = detail::Seam(tensor_parallel.group, tensor_parallel.sequence_parallel);
  const Param& vocabulary = table.params().front();
  embedding = {.table = views.of(vocabulary.name), .first = vocabulary.box.start[0]};
  layers.reserve(static_cast<std::size_t>(config.layers));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const std::string attention = at + "self_attn.", mlp = at + "mlp.";
    layers.push_back(
        {.attention = {.config = c,
                       .rotary = &rotary,
                       .norm = views.of(at + "input_layernorm.weight"),
                       .qkv = views.joined({attention + "q_proj.weight", attention + "k_proj.weight",
                                            attention + "v_proj.weight"}),
                       .output = views.of(attention + "o_proj.weight")},
         .mlp = {.config = c,
                 .norm = views.of(at + "post_attention_layernorm.weight"),
                 .gate_up = views.joined({mlp + "gate_proj.weight", mlp + "up_proj.weight"}),
                 .down = views.of(mlp + "down_proj.weight")},
         .attention_saved = {},
         .mlp_saved = {}});
  }
  head = {.config = c,
          .norm = views.of("model.norm.weight"),
          .output = config.tied ? views.tied_head() : views.of("lm_head.weight"),
          .first = embedding.first};  // the vocabulary of both is cut alike
}

at::Tensor Model::Detail::forward(const std::int64_t* tokens, Shape shape) {
  const std::int64_t rows = context.seam.rows(shape.tokens()).size();
  at::Tensor x = embedded.shaped(detail::scalar_type(dtype), {rows, table.config().width});
  embedding.forward(tokens, shape, x, context);
  for (Layer& layer : layers) {
    x = layer.attention.forward(x, shape, layer.attention_saved, context);
    x = layer.mlp.forward(x, shape, layer.mlp_saved, context);
  }
  return x;
}

Result<Model> Model::create(const ModelConfig& config, Dtype dtype, const TensorParallel& tensor_parallel) {
  MUSTER_TRY(const ModelConfig checked, validated(config));
  const int tp = tensor_parallel.group == nullptr ? 1 : tensor_parallel.group->size();
  MUSTER_CHECK(check_tensor_parallel(checked, tp));
  MUSTER_CHECK(check_memory(checked, tp, dtype));
  try {
    const at::NoGradGuard no_grad;
    return Model(std::make_unique<Detail>(checked, dtype, tensor_parallel));
  } catch (const std::exception& e) {  // bad_alloc, c10::Error
    return fail(ErrorCode::resource_exhausted, std::string("no memory for the model: ") + e.what());
  }
}

Model::Model(std::unique_ptr<Detail> detail) : detail_(std::move(detail)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const ParamTable& Model::table() const { return detail_->table; }
Dtype Model::dtype() const { return detail_->dtype; }
FlatBuffer& Model::parameters() { return detail_->parameters; }
const FlatBuffer& Model::parameters() const { return detail_->parameters; }
FlatBuffer& Model::gradients() { return detail_->gradients; }
const FlatBuffer& Model::gradients() const { return detail_->gradients; }

void Model::init_parameters(std::uint64_t seed) {
  if (dtype() == Dtype::f32) {
    init_all<float>(table(), parameters(), seed);
  } else {
    init_all<double>(table(), parameters(), seed);
  }
}

void Model::start_accumulation() { detail_->fresh = true; }

Result<void> Model::check(const Batch& batch) const {
  MUSTER_CHECK(shape_of(table().config(), batch, !batch.targets.empty()));
  return {};
}

Result<StepResult> Model::forward_backward(const Batch& batch) {
  MUSTER_TRY(const Shape shape, shape_of(table().config(), batch, true));
  const at::NoGradGuard no_grad;
  Detail& d = *detail_;
  const bool fresh = d.fresh;
  const at::Tensor x = d.forward(batch.tokens.data(), shape);
  at::Tensor stream = d.stream.shaped(x.scalar_type(), x.sizes());
  const double loss = d.head.loss(x, shape, batch.targets.data(), d.head_saved, &stream, fresh, d.context);
  for (auto layer = d.layers.rbegin(); layer != d.layers.rend(); ++layer) {
    layer->mlp.backward(stream, shape, layer->mlp_saved, fresh, d.context);
    layer->attention.backward(stream, shape, layer->attention_saved, fresh, d.context);
  }
  d.embedding.backward(batch.tokens.data(), shape, stream, fresh, d.context);
  d.fresh = false;
  MUSTER_CHECK(d.context.seam.status());
  return StepResult{.loss_sum = loss, .tokens = count_valid(batch.targets)};
}

Result<void> Model::finish_accumulation() {
  Detail& d = *detail_;
  if (!d.context.seam.cuts_rows()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const Param& param : d.table.params()) {
    if (param.spec->tp_axis == kNotCut) norms.push_back(view(d.gradients, param.offset, {param.numel}));
  }
  const at::Tensor all = at::cat(norms);  // one message for all of them
  d.context.seam.sum(all);
  std::int64_t at = 0;
  for (at::Tensor& norm : norms) {
    norm.copy_(all.narrow(0, at, norm.numel()));
    at += norm.numel();
  }
  return d.context.seam.status();
}

Result<StepResult> Model::evaluate(const Batch& batch) {
  MUSTER_TRY(const Shape shape, shape_of(table().config(), batch, true));
  const at::NoGradGuard no_grad;
  const at::Tensor x = detail_->forward(batch.tokens.data(), shape);
  const double loss = detail_->head.loss(x, shape, batch.targets.data(), detail_->head_saved, nullptr, false,
                                         detail_->context);
  MUSTER_CHECK(detail_->context.seam.status());
  return StepResult{.loss_sum = loss, .tokens = count_valid(batch.targets)};
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
  const at::Tensor x = detail_->forward(batch.tokens.data(), shape);
  at::from_blob(out.data(), {shape.tokens(), vocab}, at::kDouble)
      .copy_(detail_->head.logits(x, detail_->head_saved));
  return {};
}

void fold_tied_gradient(const ParamTable& table, FlatBuffer& gradients, Range range) {
  if (table.gradient_numel() == table.numel()) return;
  if (gradients.dtype() == Dtype::f32) {
    fold<float>(table, gradients, range);
  } else {
    fold<double>(table, gradients, range);
  }
}

}  // namespace muster::train
