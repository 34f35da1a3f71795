#include "train/model/detail/blocks.h"

#include <algorithm>
#include <cmath>

namespace muster::train::detail {
namespace {

// Calls f with a null pointer of the tensors' element type.
template <typename F>
void with_type(const at::Tensor& like, F f) {
  if (like.scalar_type() == at::kFloat) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<double*>(nullptr));
  }
}

template <typename T>
T* data(const at::Tensor& tensor, T* /*type*/) {
  return tensor.mutable_data_ptr<T>();
}

// g (+)= a @ b, never through a GEMM with beta = 1: that rounds differently.
void add_product(const at::Tensor& g, const at::Tensor& a, const at::Tensor& b, bool fresh,
                 Scratch& scratch) {
  at::Tensor target = g;
  if (fresh) {
    at::mm_out(target, a, b);
    return;
  }
  at::Tensor product = scratch.product.shaped(g.scalar_type(), g.sizes());
  at::mm_out(product, a, b);
  target.add_(product);
}

void norm_forward(const ModelConfig& config, const at::Tensor& x, const Weight& w, const at::Tensor& y,
                  const at::Tensor& rstd) {
  with_type(x, [&](auto* type) {
    kernels::rms_norm(data(x, type), data(w.value, type), data(y, type), data(rstd, type), x.size(0),
                      x.size(1), config.norm_eps);
  });
}

// d += the gradient through the norm.
void norm_backward(const at::Tensor& dy, const at::Tensor& x, const Weight& w, const at::Tensor& rstd,
                   const at::Tensor& d, bool fresh, Scratch& scratch) {
  const auto partial =
      scratch.partial.shaped(x.scalar_type(), {kernels::rms_partial_numel(x.size(0), x.size(1))});
  with_type(x, [&](auto* type) {
    kernels::rms_norm_backward(data(dy, type), data(x, type), data(w.value, type), data(rstd, type),
                               data(d, type), data(w.gradient, type), fresh, data(partial, type), x.size(0),
                               x.size(1));
  });
}

kernels::Heads heads_of(const ModelConfig& config, Shape shape) {
  return {.query = config.heads, .key = config.kv_heads, .dim = config.head_dim, .sequence = shape.sequence};
}

// [T, columns] -> its columns [begin, begin + heads * dim) as [rows, heads, sequence, dim], without a copy.
at::Tensor by_head(const at::Tensor& tokens, Shape shape, std::int64_t begin, std::int64_t heads,
                   std::int64_t dim) {
  const std::int64_t columns = tokens.size(1);
  return tokens.as_strided({shape.rows, heads, shape.sequence, dim},
                           {shape.sequence * columns, dim, columns, 1}, tokens.storage_offset() + begin);
}

// The inverse for a whole matrix: a view when the memory is token-major, as ATen's attention leaves it.
at::Tensor by_token(const at::Tensor& by_heads, Shape shape) {
  return by_heads.transpose(1, 2).reshape({shape.tokens(), by_heads.size(1) * by_heads.size(3)});
}

}  // namespace

at::ScalarType scalar_type(Dtype dtype) { return dtype == Dtype::f32 ? at::kFloat : at::kDouble; }

at::Tensor Buffer::shaped(at::ScalarType type, at::IntArrayRef shape) {
  std::int64_t numel = 1;
  for (const auto length : shape) numel *= length;
  if (!storage_.defined() || storage_.scalar_type() != type || storage_.numel() < numel) {
    storage_ = at::Tensor();  // free first
    storage_ = at::empty({numel}, type);
  }
  return storage_.narrow(0, 0, numel).view(shape);
}

Rotary make_rotary(const ModelConfig& config, at::ScalarType type) {
  const std::int64_t half = config.head_dim / 2;
  at::Tensor angle = at::empty({config.max_sequence, half}, at::kDouble);
  auto* out = angle.mutable_data_ptr<double>();
  for (std::int64_t position = 0; position < config.max_sequence; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
      out[position * half + i] = static_cast<double>(position) * frequency;
    }
  }
  return {.cosine = angle.cos().to(type), .sine = angle.sin().to(type)};
}

void Embedding::forward(const std::int64_t* tokens, Shape shape, at::Tensor& y) const {
  with_type(y, [&](auto* type) {
    kernels::embed(data(table.value, type), tokens, data(y, type), shape.tokens(), y.size(1));
  });
}

void Embedding::backward(const std::int64_t* tokens, Shape shape, const at::Tensor& dy, bool fresh,
                         Scratch& scratch) const {
  const std::int64_t vocab = table.value.size(0);
  scratch.order.resize(static_cast<std::size_t>(shape.tokens()));
  scratch.first.resize(static_cast<std::size_t>(vocab) + 1);
  with_type(dy, [&](auto* type) {
    kernels::embed_backward(data(dy, type), tokens, data(table.gradient, type), fresh, scratch.order.data(),
                            scratch.first.data(), shape.tokens(), dy.size(1), vocab);
  });
}

at::Tensor Attention::forward(const at::Tensor& x, Shape shape, Saved& saved) const {
  const auto type = x.scalar_type();
  const std::int64_t tokens = shape.tokens(), dim = config->head_dim, inner = config->query_width();
  const auto heads = heads_of(*config, shape);
  saved.x = x;
  saved.normed = saved.normed_.shaped(type, {tokens, config->width});
  saved.rstd = saved.rstd_.shaped(type, {tokens});
  saved.qkv = saved.qkv_.shaped(type, {tokens, heads.columns()});
  norm_forward(*config, x, norm, saved.normed, saved.rstd);
  at::mm_out(saved.qkv, saved.normed, qkv.value.t());
  with_type(x, [&](auto* t) {
    kernels::rope(data(saved.qkv, t), data(rotary->cosine, t), data(rotary->sine, t), tokens, heads);
  });
  saved.q = by_head(saved.qkv, shape, 0, config->heads, dim);
  if (config->heads == config->kv_heads) {
    saved.k = by_head(saved.qkv, shape, inner, config->heads, dim);
    saved.v = by_head(saved.qkv, shape, 2 * inner, config->heads, dim);
  } else {
    const at::Tensor k = saved.k_.shaped(type, {tokens, inner});
    const at::Tensor v = saved.v_.shaped(type, {tokens, inner});
    with_type(x, [&](auto* t) {
      kernels::repeat_heads(data(saved.qkv, t), data(k, t), data(v, t), tokens, heads);
    });
    saved.k = by_head(k, shape, 0, config->heads, dim);
    saved.v = by_head(v, shape, 0, config->heads, dim);
  }
  std::tie(saved.mixed, saved.logsumexp) =
      at::_scaled_dot_product_flash_attention_for_cpu(saved.q, saved.k, saved.v, 0.0, /*is_causal=*/true);
  at::Tensor y = saved.y_.shaped(type, {tokens, config->width});
  at::addmm_out(y, x, by_token(saved.mixed, shape), output.value.t());
  return y;
}

void Attention::backward(at::Tensor& d, Shape shape, Saved& saved, bool fresh, Scratch& scratch) const {
  const auto type = d.scalar_type();
  const std::int64_t tokens = shape.tokens(), inner = config->query_width();
  const auto heads = heads_of(*config, shape);
  at::Tensor d_mixed = scratch.inner.shaped(type, {tokens, inner});
  at::mm_out(d_mixed, d, output.value);
  add_product(output.gradient, d.t(), by_token(saved.mixed, shape), fresh, scratch);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      by_head(d_mixed, shape, 0, config->heads, config->head_dim), saved.q, saved.k, saved.v, saved.mixed,
      saved.logsumexp, 0.0, /*is_causal=*/true);
  const at::Tensor d_qkv = scratch.wide.shaped(type, {tokens, heads.columns()});
  const at::Tensor q_rows = by_token(dq, shape), k_rows = by_token(dk, shape), v_rows = by_token(dv, shape);
  with_type(d, [&](auto* t) {
    kernels::rope_backward(data(q_rows, t), data(k_rows, t), data(v_rows, t), data(rotary->cosine, t),
                           data(rotary->sine, t), data(d_qkv, t), tokens, heads);
  });
  add_product(qkv.gradient, d_qkv.t(), saved.normed, fresh, scratch);
  at::Tensor d_normed = scratch.narrow.shaped(type, {tokens, config->width});
  at::mm_out(d_normed, d_qkv, qkv.value);
  norm_backward(d_normed, saved.x, norm, saved.rstd, d, fresh, scratch);
}

at::Tensor Mlp::forward(const at::Tensor& x, Shape shape, Saved& saved) const {
  const auto type = x.scalar_type();
  const std::int64_t tokens = shape.tokens();
  saved.x = x;
  saved.normed = saved.normed_.shaped(type, {tokens, config->width});
  saved.rstd = saved.rstd_.shaped(type, {tokens});
  saved.gate_up = saved.gate_up_.shaped(type, {tokens, 2 * config->ffn});
  saved.hidden = saved.hidden_.shaped(type, {tokens, config->ffn});
  norm_forward(*config, x, norm, saved.normed, saved.rstd);
  at::mm_out(saved.gate_up, saved.normed, gate_up.value.t());
  with_type(x, [&](auto* t) {
    kernels::swiglu(data(saved.gate_up, t), data(saved.hidden, t), tokens, config->ffn);
  });
  at::Tensor y = saved.y_.shaped(type, {tokens, config->width});
  at::addmm_out(y, x, saved.hidden, down.value.t());
  return y;
}

void Mlp::backward(at::Tensor& d, Shape shape, Saved& saved, bool fresh, Scratch& scratch) const {
  const auto type = d.scalar_type();
  const std::int64_t tokens = shape.tokens();
  at::Tensor d_hidden = scratch.inner.shaped(type, {tokens, config->ffn});
  at::mm_out(d_hidden, d, down.value);
  add_product(down.gradient, d.t(), saved.hidden, fresh, scratch);
  const at::Tensor d_gate_up = scratch.wide.shaped(type, {tokens, 2 * config->ffn});
  with_type(d, [&](auto* t) {
    kernels::swiglu_backward(data(d_hidden, t), data(saved.gate_up, t), data(d_gate_up, t), tokens,
                             config->ffn);
  });
  add_product(gate_up.gradient, d_gate_up.t(), saved.normed, fresh, scratch);
  at::Tensor d_normed = scratch.narrow.shaped(type, {tokens, config->width});
  at::mm_out(d_normed, d_gate_up, gate_up.value);
  norm_backward(d_normed, saved.x, norm, saved.rstd, d, fresh, scratch);
}

double Head::loss(const at::Tensor& x, const std::int64_t* targets, Saved& saved, at::Tensor* dx, bool fresh,
                  Scratch& scratch) const {
  const auto type = x.scalar_type();
  const std::int64_t tokens = x.size(0), vocab = output.value.size(0);
  const at::Tensor normed = saved.normed_.shaped(type, {tokens, config->width});
  const at::Tensor rstd = saved.rstd_.shaped(type, {tokens});
  const at::Tensor d_normed = scratch.narrow.shaped(type, {tokens, config->width});
  norm_forward(*config, x, norm, normed, rstd);
  scratch.losses.assign(static_cast<std::size_t>(tokens), 0.0);

  const std::int64_t row_bytes = vocab * static_cast<std::int64_t>(x.element_size());
  const std::int64_t chunk = std::max<std::int64_t>(logit_bytes_max / row_bytes / 16 * 16, 16);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - begin);
    at::Tensor out = saved.logits_.shaped(type, {count, vocab});
    at::mm_out(out, normed.narrow(0, begin, count), output.value.t());
    with_type(x, [&](auto* t) {
      kernels::cross_entropy(data(out, t), targets + begin, scratch.losses.data() + begin, count, vocab,
                             dx != nullptr);
    });
    if (dx == nullptr) continue;
    add_product(output.gradient, out.t(), normed.narrow(0, begin, count), fresh && begin == 0, scratch);
    at::Tensor part = d_normed.narrow(0, begin, count);
    at::mm_out(part, out, output.value);
  }
  if (dx != nullptr) {
    dx->zero_();
    norm_backward(d_normed, x, norm, rstd, *dx, fresh, scratch);
  }
  double sum = 0;
  for (const double loss : scratch.losses) sum += loss;
  return sum;
}

at::Tensor Head::logits(const at::Tensor& x, Saved& saved) const {
  const at::Tensor normed = saved.normed_.shaped(x.scalar_type(), x.sizes());
  const at::Tensor rstd = saved.rstd_.shaped(x.scalar_type(), {x.size(0)});
  norm_forward(*config, x, norm, normed, rstd);
  at::Tensor out = saved.logits_.shaped(x.scalar_type(), {x.size(0), output.value.size(0)});
  at::mm_out(out, normed, output.value.t());
  return out;
}

}  // namespace muster::train::detail
