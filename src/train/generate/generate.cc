#include "train/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/rng.h"
#include "train/model/detail/model_detail.h"
#include "train/model/detail/types.h"
#include "train/tensor.h"

namespace muster::train {

struct Decoder::Detail {
  explicit Detail(Model& m) : model(&m) {}

  Model* model;
  std::vector<at::Tensor> keys, values;  // a layer: [K, max_sequence, D]
  std::int64_t length = 0;
  std::vector<double> logits;

  at::Tensor attention(const at::Tensor& x, const detail::Attention& block, std::size_t layer);
  void answer(const at::Tensor& x);
};

namespace {

at::Tensor normed(const at::Tensor& x, const detail::Weight& weight, double eps) {
  at::Tensor y = at::empty_like(x), rstd = at::empty({x.size(0)}, x.options());
  detail::with_wide_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    kernels::rms_norm<T>(x.const_data_ptr<T>(), weight.value.const_data_ptr<T>(), y.mutable_data_ptr<T>(),
                         rstd.mutable_data_ptr<T>(), x.size(0), x.size(1), eps);
  });
  return y;
}

}  // namespace

// One token, x [1, W]; appends its key and value.
at::Tensor Decoder::Detail::attention(const at::Tensor& x, const detail::Attention& block,
                                      std::size_t layer) {
  const ModelConfig& c = *block.config;
  const at::Tensor qkv = normed(x, block.norm, c.norm_eps).mm(block.qkv.value.t());
  const kernels::Heads heads{
      .query = c.heads, .key = c.kv_heads, .dim = c.head_dim, .sequence = 1, .first = length};
  detail::with_wide_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    kernels::rope<T>(qkv.mutable_data_ptr<T>(), block.rotary->cosine.const_data_ptr<T>(),
                     block.rotary->sine.const_data_ptr<T>(), 1, heads);
  });
  const at::Tensor all = qkv.view({c.heads + 2 * c.kv_heads, c.head_dim});
  keys[layer].select(1, length).copy_(all.narrow(0, c.heads, c.kv_heads));
  values[layer].select(1, length).copy_(all.narrow(0, c.heads + c.kv_heads, c.kv_heads));
  // [K, group, D] x [K, D, length + 1]
  const at::Tensor q = all.narrow(0, 0, c.heads).view({c.kv_heads, c.heads / c.kv_heads, c.head_dim});
  const at::Tensor scores = q.bmm(keys[layer].narrow(1, 0, length + 1).transpose(1, 2));
  const at::Tensor weights = (scores / std::sqrt(static_cast<double>(c.head_dim))).softmax(2);
  const at::Tensor mixed = weights.bmm(values[layer].narrow(1, 0, length + 1)).view({1, c.query_width()});
  return x + mixed.mm(block.output.value.t());
}

void Decoder::Detail::answer(const at::Tensor& x) {
  Model::Detail& m = model->detail();
  const at::Tensor out = m.logits(x);
  logits.resize(static_cast<std::size_t>(out.size(1)));
  at::from_blob(logits.data(), {1, out.size(1)}, at::kDouble).copy_(out);
}

Decoder::Decoder(Model& model) : detail_(std::make_unique<Detail>(model)) {
  const ModelConfig& c = model.table().config();
  for (std::int64_t i = 0; i < c.layers; ++i) {
    for (auto* cache : {&detail_->keys, &detail_->values}) {
      cache->push_back(
          at::empty({c.kv_heads, c.max_sequence, c.head_dim}, detail::scalar_type(model.dtype())));
    }
  }
}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

std::int64_t Decoder::length() const { return detail_->length; }

Result<std::span<const double>> Decoder::read(std::span<const std::int64_t> tokens) {
  Detail& d = *detail_;
  const ModelConfig& c = d.model->table().config();
  const auto count = static_cast<std::int64_t>(tokens.size());
  MUSTER_CHECK(d.model->check({.tokens = tokens, .targets = {}, .rows = 1, .sequence = count}));
  const at::NoGradGuard no_grad;
  Model::Detail& m = d.model->detail();
  Model::Detail::Slot& slot = m.slot(0);
  const at::Tensor x = m.forward(slot, tokens.data(), {.rows = 1, .sequence = count});
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const at::Tensor all = slot.saved[i].attention.qkv.view({count, c.heads + 2 * c.kv_heads, c.head_dim});
    d.keys[i].narrow(1, 0, count).copy_(all.narrow(1, c.heads, c.kv_heads).transpose(0, 1));
    d.values[i].narrow(1, 0, count).copy_(all.narrow(1, c.heads + c.kv_heads, c.kv_heads).transpose(0, 1));
  }
  d.length = count;
  d.answer(x.narrow(0, count - 1, 1));
  return std::span<const double>(d.logits);
}

Result<std::span<const double>> Decoder::next(std::int64_t token) {
  Detail& d = *detail_;
  const ModelConfig& c = d.model->table().config();
  if (d.length == c.max_sequence) {
    return fail(ErrorCode::failed_precondition,
                "the text has " + std::to_string(d.length) +
                    " tokens, which is the model's max_sequence: read() a part of it again");
  }
  MUSTER_CHECK(d.model->check({.tokens = {&token, 1}, .targets = {}, .rows = 1, .sequence = 1}));
  const at::NoGradGuard no_grad;
  Model::Detail& m = d.model->detail();
  at::Tensor x = at::empty({1, c.width}, detail::scalar_type(d.model->dtype()));
  m.embedding.forward(&token, {.rows = 1, .sequence = 1}, x, m.context);
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    x = d.attention(x, m.layers[i].attention, i);
    at::Tensor y = at::empty_like(x);
    m.layers[i].mlp.forward(x, &y, {.rows = 1, .sequence = 1}, m.slot(0).saved[i].mlp, m.context);
    x = y;
  }
  ++d.length;
  d.answer(x);
  return std::span<const double>(d.logits);
}

std::int64_t sample(std::span<const double> logits, double temperature, std::int64_t top_k, double uniform) {
  const auto count = static_cast<std::int64_t>(logits.size());
  if (temperature <= 0 || top_k == 1) return std::ranges::max_element(logits) - logits.begin();
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](std::int64_t i) { return logits[static_cast<std::size_t>(i)]; };
  if (top_k > 0 && top_k < count) {
    // Equal logits: the lower id first, so that the draw is the same everywhere.
    std::ranges::nth_element(order, order.begin() + top_k - 1, [&](std::int64_t a, std::int64_t b) {
      return value(a) != value(b) ? value(a) > value(b) : a < b;
    });
    order.resize(static_cast<std::size_t>(top_k));
    std::ranges::sort(order);
  }
  double most = value(order.front());
  for (const auto i : order) most = std::max(most, value(i));
  std::vector<double> weight(order.size());
  double sum = 0;
  for (std::size_t n = 0; n < order.size(); ++n)
    sum += weight[n] = std::exp((value(order[n]) - most) / temperature);
  double left = uniform * sum;
  for (std::size_t n = 0; n < order.size(); ++n) {
    left -= weight[n];
    if (left < 0) return order[n];
  }
  return order.back();
}

Result<std::vector<std::int64_t>> generate(Model& model, std::span<const std::int64_t> prompt,
                                           const GenerateOptions& options,
                                           const std::function<bool(std::int64_t)>& on_token) {
  if (prompt.empty()) {
    return fail(ErrorCode::invalid_argument,
                "the prompt has no tokens; it needs at least the beginning-of-text token");
  }
  if (!(options.temperature >= 0) || options.top_k < 0 || options.tokens_max < 0) {
    return fail(ErrorCode::invalid_argument, "temperature is " + std::to_string(options.temperature) +
                                                 ", top_k " + std::to_string(options.top_k) +
                                                 ", tokens_max " + std::to_string(options.tokens_max) +
                                                 "; none may be below 0");
  }
  const auto window = static_cast<std::size_t>(model.table().config().max_sequence);
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  const auto tail = [&](std::size_t count) {
    return std::span<const std::int64_t>(text).last(std::min(count, text.size()));
  };
  Rng rng(options.seed);
  Decoder decoder(model);
  MUSTER_TRY(std::span<const double> logits, decoder.read(tail(window)));
  std::vector<std::int64_t> out;
  while (static_cast<std::int64_t>(out.size()) < options.tokens_max) {
    if (!std::ranges::all_of(logits, [](double logit) { return std::isfinite(logit); })) {
      return fail(ErrorCode::failed_precondition,
                  "behind " + std::to_string(text.size()) +
                      " tokens the model's logits are not finite, although its weights are: there is "
                      "nothing to draw from. An earlier checkpoint may be sound");
    }
    const std::int64_t token = sample(logits, options.temperature, options.top_k, rng.uniform());
    if (token == options.end_token) break;
    out.push_back(token);
    text.push_back(token);
    if (on_token && !on_token(token)) break;
    if (static_cast<std::int64_t>(out.size()) == options.tokens_max) break;
    const bool full = decoder.length() == static_cast<std::int64_t>(window);
    MUSTER_TRY(logits, full ? decoder.read(tail((window + 1) / 2)) : decoder.next(token));
  }
  return out;
}

}  // namespace muster::train
