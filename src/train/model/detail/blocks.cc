#include "train/model/detail/blocks.h"

#include <algorithm>
#include <cmath>

#include "train/model/detail/types.h"

namespace muster::train::detail {
namespace {

void norm_forward(const ModelConfig& config, const at::Tensor& x, const Weight& w, const at::Tensor& y,
                  const at::Tensor& rstd) {
  with_type(x, [&](auto* type) {
    kernels::rms_norm(data(x, type), data(w.value, type), data(y, type), wide_data(rstd, type), x.size(0),
                      x.size(1), config.norm_eps);
  });
}

// d += the gradient through the norm.
void norm_backward(const at::Tensor& dy, const at::Tensor& x, const Weight& w, const at::Tensor& rstd,
                   const at::Tensor& d, bool fresh, Context& context) {
  const auto partial =
      context.partial.shaped(wide(x.scalar_type()), {kernels::rms_partial_numel(x.size(0), x.size(1))});
  with_type(x, [&](auto* type) {
    kernels::rms_norm_backward(data(dy, type), data(x, type), data(w.value, type), wide_data(rstd, type),
                               data(d, type), wide_data(w.gradient, type), fresh, wide_data(partial, type),
                               x.size(0), x.size(1));
  });
}

// y = x + inner @ w^T, summed over the seam.
void add_output(const at::Tensor& x, at::Tensor& y, const at::Tensor& inner, const Weight& w,
                Context& context) {
  if (context.seam.alone()) {
    context.products.multiply_onto(y, x, inner, w.value.t());
    return;
  }
  const at::Tensor partial = context.narrow.shaped(x.scalar_type(), {inner.size(0), x.size(1)});
  context.products.multiply(partial, inner, w.value.t());
  at::add_out(y, x, context.seam.leave(partial));
}

Cheap& cheap_of(Cheap& saved, Context& context) { return context.drops_cheap ? context.cheap : saved; }

// The normed input of a block, whole, and with it rstd.
template <typename Saved>
void normalize_input(const ModelConfig& config, const Weight& norm, Shape shape, Saved& saved,
                     Context& context) {
  Cheap& cheap = cheap_of(saved.cheap, context);
  const at::Tensor normed = cheap.normed.shaped(saved.x.scalar_type(), saved.x.sizes());
  saved.rstd = saved.rstd_.shaped(wide(saved.x.scalar_type()), {saved.x.size(0)});
  norm_forward(config, saved.x, norm, normed, saved.rstd);
  saved.normed = context.seam.enter(normed, shape.tokens(), cheap.entered);
}

kernels::Heads heads_of(const ModelConfig& config, Shape shape) {
  return {.query = config.heads,
          .key = config.kv_heads,
          .dim = config.head_dim,
          .sequence = shape.sequence,
          .positions = shape.documents == nullptr ? nullptr : shape.documents->positions.data()};
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

Rotary make_rotary(const ModelConfig& config, at::ScalarType type) {
  const std::int64_t half = config.head_dim / 2;
  at::Tensor angle = at::empty({config.max_sequence, half}, at::kDouble);
  auto* out = angle.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = rope_frequency(config, i);
    for (std::int64_t position = 0; position < config.max_sequence; ++position) {
      out[position * half + i] = static_cast<double>(position) * frequency;
    }
  }
  return {.cosine = angle.cos().to(type), .sine = angle.sin().to(type)};
}

namespace {

// Tokens or targets as rows of the part of the vocabulary that begins at `first`; negative: none of its rows.
// What is negative already stays as it is.
const std::int64_t* as_rows(const std::int64_t* ids, std::int64_t count, std::int64_t first,
                            std::int64_t rows, Context& context) {
  if (context.seam.alone()) return ids;
  context.local.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = ids[i] - first;
    context.local[static_cast<std::size_t>(i)] = ids[i] < 0               ? ids[i]
                                                 : row >= 0 && row < rows ? row
                                                                          : kernels::kElsewhere;
  }
  return context.local.data();
}

}  // namespace

void Embedding::forward(const std::int64_t* tokens, Shape shape, at::Tensor& y, Context& context) const {
  const auto* rows = as_rows(tokens, shape.tokens(), first, table.value.size(0), context);
  const auto embed = [&](const at::Tensor& into) {
    with_type(into, [&](auto* type) {
      kernels::embed(data(table.value, type), rows, data(into, type), shape.tokens(), into.size(1));
    });
  };
  if (context.seam.alone()) {
    embed(y);
    return;
  }
  const at::Tensor partial = context.narrow.shaped(y.scalar_type(), {shape.tokens(), y.size(1)});
  embed(partial);
  y.copy_(context.seam.leave(partial));
}

void Embedding::backward(const std::int64_t* tokens, Shape shape, const at::Tensor& dy, bool fresh,
                         Context& context) const {
  const std::int64_t vocab = table.value.size(0);
  context.order.resize(static_cast<std::size_t>(shape.tokens()));
  context.first.resize(static_cast<std::size_t>(vocab) + 1);
  const at::Tensor d = context.seam.enter(dy, shape.tokens(), context.entered);
  const auto* rows = as_rows(tokens, shape.tokens(), first, vocab, context);
  with_type(d, [&](auto* type) {
    kernels::embed_backward(data(d, type), rows, wide_data(table.gradient, type), fresh, context.order.data(),
                            context.first.data(), shape.tokens(), d.size(1), vocab);
  });
}

void Attention::normalize(Shape shape, Saved& saved, Context& context) const {
  normalize_input(*config, norm, shape, saved, context);
}

// q, k, v of saved.qkv, a key and a value head for every query head.
void Attention::spread_heads(Shape shape, Saved& saved, Context& context) const {
  const std::int64_t tokens = shape.tokens(), dim = config->head_dim, inner = config->query_width();
  saved.q = by_head(saved.qkv, shape, 0, config->heads, dim);
  if (config->heads == config->kv_heads) {
    saved.k = by_head(saved.qkv, shape, inner, config->heads, dim);
    saved.v = by_head(saved.qkv, shape, 2 * inner, config->heads, dim);
    return;
  }
  Cheap& cheap = cheap_of(saved.cheap, context);
  const at::Tensor k = cheap.keys.shaped(saved.qkv.scalar_type(), {tokens, inner});
  const at::Tensor v = cheap.values.shaped(saved.qkv.scalar_type(), {tokens, inner});
  with_type(saved.qkv, [&](auto* t) {
    kernels::repeat_heads(data(saved.qkv, t), data(k, t), data(v, t), tokens, heads_of(*config, shape));
  });
  saved.k = by_head(k, shape, 0, config->heads, dim);
  saved.v = by_head(v, shape, 0, config->heads, dim);
}

namespace {

// One document of [rows, heads, sequence, dim].
at::Tensor document(const at::Tensor& by_heads, const Documents::Part& part) {
  return by_heads.narrow(0, part.row, 1).narrow(2, part.begin, part.length);
}

}  // namespace

// Causal attention of each row, or inside each document, as if it stood alone. In the wide type, as products
// are.
void Attention::attend(Shape shape, Saved& saved) const {
  saved.logsumexp.clear();
  const auto sdpa = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    auto [mixed, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        widened(q), widened(k), widened(v), 0.0, /*is_causal=*/true);
    saved.logsumexp.push_back(logsumexp);
    return mixed.to(q.scalar_type());
  };
  if (shape.documents == nullptr) {
    saved.mixed = sdpa(saved.q, saved.k, saved.v);
    return;
  }
  const at::Tensor rows = saved.mixed_.shaped(saved.q.scalar_type(), {shape.tokens(), config->query_width()});
  saved.mixed = by_head(rows, shape, 0, config->heads, config->head_dim);
  for (const Documents::Part& part : shape.documents->parts) {
    document(saved.mixed, part)
        .copy_(sdpa(document(saved.q, part), document(saved.k, part), document(saved.v, part)));
  }
}

// The gradients of q, k and v, in the wide type.
std::array<at::Tensor, 3> Attention::attend_backward(const at::Tensor& d_mixed, Shape shape,
                                                     const Saved& saved, Context& context) const {
  const auto sdpa = [&](const at::Tensor& d, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& mixed, const at::Tensor& logsumexp) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        widened(d), widened(q), widened(k), widened(v), widened(mixed), logsumexp, 0.0, /*is_causal=*/true);
  };
  if (shape.documents == nullptr) {
    const auto [dq, dk, dv] = sdpa(d_mixed, saved.q, saved.k, saved.v, saved.mixed, saved.logsumexp[0]);
    return {dq, dk, dv};
  }
  const auto room = [&](Buffer& buffer) {
    const auto type = wide(d_mixed.scalar_type());
    return by_head(buffer.shaped(type, {shape.tokens(), config->query_width()}), shape, 0, config->heads,
                   config->head_dim);
  };
  const std::array<at::Tensor, 3> all = {room(context.queries), room(context.keys), room(context.values)};
  for (std::size_t i = 0; i < shape.documents->parts.size(); ++i) {
    const Documents::Part& part = shape.documents->parts[i];
    const auto [dq, dk, dv] = sdpa(document(d_mixed, part), document(saved.q, part), document(saved.k, part),
                                   document(saved.v, part), document(saved.mixed, part), saved.logsumexp[i]);
    document(all[0], part).copy_(dq);
    document(all[1], part).copy_(dk);
    document(all[2], part).copy_(dv);
  }
  return all;
}

void Attention::forward(const at::Tensor& x, at::Tensor* y, Shape shape, Saved& saved,
                        Context& context) const {
  const auto heads = heads_of(*config, shape);
  saved.x = x;
  normalize(shape, saved, context);
  saved.qkv = saved.qkv_.shaped(x.scalar_type(), {shape.tokens(), heads.columns()});
  context.products.multiply(saved.qkv, saved.normed, qkv.value.t());
  with_type(x, [&](auto* t) {
    kernels::rope(data(saved.qkv, t), wide_data(rotary->cosine, t), wide_data(rotary->sine, t),
                  shape.tokens(), heads);
  });
  spread_heads(shape, saved, context);
  attend(shape, saved);
  if (y != nullptr) add_output(x, *y, by_token(saved.mixed, shape), output, context);
}

void Attention::backward(at::Tensor& d, Shape shape, Saved& saved, bool fresh, Context& context) const {
  const auto type = d.scalar_type();
  const std::int64_t tokens = shape.tokens(), inner = config->query_width();
  const auto heads = heads_of(*config, shape);
  if (context.drops_cheap) {
    normalize(shape, saved, context);
    spread_heads(shape, saved, context);
  }
  const at::Tensor d_mixed = context.inner.shaped(type, {tokens, inner});
  const at::Tensor dy = context.seam.enter(d, tokens, context.entered);
  context.products.multiply(d_mixed, dy, output.value);
  context.products.accumulate(output.gradient, dy.t(), by_token(saved.mixed, shape), fresh);
  const auto [dq, dk, dv] =
      attend_backward(by_head(d_mixed, shape, 0, config->heads, config->head_dim), shape, saved, context);
  const at::Tensor d_qkv = context.wide.shaped(type, {tokens, heads.columns()});
  const at::Tensor q_rows = by_token(dq, shape), k_rows = by_token(dk, shape), v_rows = by_token(dv, shape);
  with_type(d, [&](auto* t) {
    kernels::rope_backward(wide_data(q_rows, t), wide_data(k_rows, t), wide_data(v_rows, t),
                           wide_data(rotary->cosine, t), wide_data(rotary->sine, t), data(d_qkv, t), tokens,
                           heads);
  });
  context.products.accumulate(qkv.gradient, d_qkv.t(), saved.normed, fresh);
  const at::Tensor d_normed = context.narrow.shaped(type, {tokens, config->width});
  context.products.multiply(d_normed, d_qkv, qkv.value);
  norm_backward(context.seam.leave(d_normed), saved.x, norm, saved.rstd, d, fresh, context);
}

void Mlp::normalize(Shape shape, Saved& saved, Context& context) const {
  normalize_input(*config, norm, shape, saved, context);
}

void Mlp::activate(Shape shape, Saved& saved, Context& context) const {
  saved.hidden = cheap_of(saved.cheap, context)
                     .hidden.shaped(saved.gate_up.scalar_type(), {shape.tokens(), config->ffn});
  with_type(saved.gate_up, [&](auto* t) {
    kernels::swiglu(data(saved.gate_up, t), data(saved.hidden, t), shape.tokens(), config->ffn);
  });
}

void Mlp::forward(const at::Tensor& x, at::Tensor* y, Shape shape, Saved& saved, Context& context) const {
  saved.x = x;
  normalize(shape, saved, context);
  saved.gate_up = saved.gate_up_.shaped(x.scalar_type(), {shape.tokens(), 2 * config->ffn});
  context.products.multiply(saved.gate_up, saved.normed, gate_up.value.t());
  activate(shape, saved, context);
  if (y != nullptr) add_output(x, *y, saved.hidden, down, context);
}

void Mlp::backward(at::Tensor& d, Shape shape, Saved& saved, bool fresh, Context& context) const {
  const auto type = d.scalar_type();
  const std::int64_t tokens = shape.tokens();
  if (context.drops_cheap) {
    normalize(shape, saved, context);
    activate(shape, saved, context);
  }
  const at::Tensor d_hidden = context.inner.shaped(type, {tokens, config->ffn});
  const at::Tensor dy = context.seam.enter(d, tokens, context.entered);
  context.products.multiply(d_hidden, dy, down.value);
  context.products.accumulate(down.gradient, dy.t(), saved.hidden, fresh);
  const at::Tensor d_gate_up = context.wide.shaped(type, {tokens, 2 * config->ffn});
  with_type(d, [&](auto* t) {
    kernels::swiglu_backward(data(d_hidden, t), data(saved.gate_up, t), data(d_gate_up, t), tokens,
                             config->ffn);
  });
  context.products.accumulate(gate_up.gradient, d_gate_up.t(), saved.normed, fresh);
  const at::Tensor d_normed = context.narrow.shaped(type, {tokens, config->width});
  context.products.multiply(d_normed, d_gate_up, gate_up.value);
  norm_backward(context.seam.leave(d_normed), saved.x, norm, saved.rstd, d, fresh, context);
}

namespace {

// The loss of `count` tokens from this part's logits and the other parts' sums; with `gradient`, logits
// become its gradient, as kernels::cross_entropy() does it alone.
void cut_cross_entropy(const at::Tensor& logits, const std::int64_t* rows, double* losses, std::int64_t count,
                       bool gradient, Context& context) {
  const std::int64_t vocab = logits.size(1);
  context.mine.resize(static_cast<std::size_t>(3 * count));
  double* greatest =
      context.mine.data();  // of the part; then the sum of exponentials; then the target's logit
  with_wide_type(logits, [&](auto* t) {
    kernels::softmax_parts(data(logits, t), rows, greatest, greatest + count, greatest + 2 * count, count,
                           vocab);
  });
  context.seam.gather(context.mine, context.all);
  const int parts = context.seam.size();
  const auto of = [&](int part, int what, std::int64_t token) {
    return context.all[static_cast<std::size_t>((part * 3 + what) * count + token)];
  };
  for (std::int64_t token = 0; token < count; ++token) {
    double most = of(0, 0, token), sum = 0, wanted = 0;
    for (int part = 1; part < parts; ++part) most = std::max(most, of(part, 0, token));
    for (int part = 0; part < parts; ++part) {
      sum += of(part, 1, token) * std::exp(of(part, 0, token) - most);
      wanted += of(part, 2, token);
    }
    losses[token] = rows[token] == kernels::kIgnored ? 0 : std::log(sum) - (wanted - most);
    greatest[token] = most;
    greatest[count + token] = sum;
  }
  if (!gradient) return;
  with_wide_type(logits, [&](auto* t) {
    kernels::softmax_gradient(data(logits, t), rows, greatest, greatest + count, count, vocab);
  });
}

}  // namespace

double Head::loss(const at::Tensor& x, Shape shape, const std::int64_t* targets, Saved& saved, at::Tensor* dx,
                  bool fresh, Context& context) const {
  const auto type = x.scalar_type();
  const std::int64_t tokens = shape.tokens(), vocab = output.value.size(0);
  const at::Tensor rstd = saved.rstd_.shaped(wide(type), {x.size(0)});
  const at::Tensor mine = saved.normed_.shaped(type, x.sizes());
  norm_forward(*config, x, norm, mine, rstd);
  const at::Tensor normed = context.seam.enter(mine, tokens, saved.entered_);
  const at::Tensor d_normed = context.narrow.shaped(type, {tokens, config->width});
  const auto* rows = as_rows(targets, tokens, first, vocab, context);
  context.losses.assign(static_cast<std::size_t>(tokens), 0.0);

  const at::Tensor vocabulary = widened(output.value, saved.output_);
  const std::int64_t row_bytes = rows_max * static_cast<std::int64_t>(rstd.element_size());
  const std::int64_t chunk = std::max<std::int64_t>(logit_bytes_max / row_bytes / 16 * 16, 16);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - begin);
    const at::Tensor out = saved.logits_.shaped(wide(type), {count, vocab});
    double* losses = context.losses.data() + begin;
    context.products.multiply(out, normed.narrow(0, begin, count), vocabulary.t());
    if (context.seam.alone()) {
      with_wide_type(out, [&](auto* t) {
        kernels::cross_entropy(data(out, t), rows + begin, losses, count, vocab, dx != nullptr);
      });
    } else {
      cut_cross_entropy(out, rows + begin, losses, count, dx != nullptr, context);
    }
    if (dx == nullptr) continue;
    context.products.accumulate(output.gradient, out.t(), normed.narrow(0, begin, count),
                                fresh && begin == 0);
    context.products.multiply(d_normed.narrow(0, begin, count), out, vocabulary);
  }
  if (dx != nullptr) {
    dx->zero_();
    norm_backward(context.seam.leave(d_normed), x, norm, rstd, *dx, fresh, context);
  }
  double sum = 0;
  for (const double loss : context.losses) sum += loss;
  return sum;
}

at::Tensor Head::logits(const at::Tensor& x, Saved& saved, Context& context) const {
  const auto wide_type = wide(x.scalar_type());
  const at::Tensor normed = saved.normed_.shaped(x.scalar_type(), x.sizes());
  const at::Tensor rstd = saved.rstd_.shaped(wide_type, {x.size(0)});
  norm_forward(*config, x, norm, normed, rstd);
  const at::Tensor out = saved.logits_.shaped(wide_type, {x.size(0), output.value.size(0)});
  context.products.multiply(out, normed, output.value.t());
  return out;
}

}  // namespace muster::train::detail
