#include "train/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/assert.h"

namespace muster::train::reference {
namespace {

using Size = std::size_t;
using Vector = std::vector<double>;

Size size(std::int64_t n) { return static_cast<Size>(n); }

// y[t, o] = sum_i x[t, i] w[o, i]
Vector linear(const Vector& x, const double* w, Size tokens, Size in, Size out) {
  Vector y(tokens * out, 0.0);
  for (Size t = 0; t < tokens; ++t) {
    for (Size o = 0; o < out; ++o) {
      for (Size i = 0; i < in; ++i) y[t * out + o] += x[t * in + i] * w[o * in + i];
    }
  }
  return y;
}

// dx += dy w, dw += dy^T x
void linear_backward(const Vector& dy, const Vector& x, const double* w, Vector& dx, double* dw, Size tokens,
                     Size in, Size out) {
  for (Size t = 0; t < tokens; ++t) {
    for (Size o = 0; o < out; ++o) {
      const double d = dy[t * out + o];
      for (Size i = 0; i < in; ++i) {
        dx[t * in + i] += d * w[o * in + i];
        dw[o * in + i] += d * x[t * in + i];
      }
    }
  }
}

double inverse_rms(const double* x, Size width, double eps) {
  double squares = 0;
  for (Size i = 0; i < width; ++i) squares += x[i] * x[i];
  return 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
}

Vector norm(const Vector& x, const double* w, Size tokens, Size width, double eps) {
  Vector y(tokens * width);
  for (Size t = 0; t < tokens; ++t) {
    const double r = inverse_rms(&x[t * width], width, eps);
    for (Size i = 0; i < width; ++i) y[t * width + i] = x[t * width + i] * r * w[i];
  }
  return y;
}

void norm_backward(const Vector& dy, const Vector& x, const double* w, Vector& dx, double* dw, Size tokens,
                   Size width, double eps) {
  for (Size t = 0; t < tokens; ++t) {
    const double* in = &x[t * width];
    const double* d = &dy[t * width];
    const double r = inverse_rms(in, width, eps);
    double dot = 0;
    for (Size i = 0; i < width; ++i) dot += d[i] * w[i] * in[i];
    for (Size i = 0; i < width; ++i) {
      dx[t * width + i] += r * d[i] * w[i] - r * r * r * dot / static_cast<double>(width) * in[i];
      dw[i] += d[i] * in[i] * r;
    }
  }
}

// theta^(-2i/D), scaled. Llama 3 scales by wavelength: long waves are stretched, short ones stay, and what
// lies between is a blend.
double frequency(const ModelConfig& c, Size i) {
  const double plain =
      1.0 / std::pow(c.rope_theta, 2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
  if (c.rope_scaling == "linear") return plain / c.rope_factor;
  if (c.rope_scaling == "llama3") {
    const double context = static_cast<double>(c.rope_original_sequence);
    const double wavelength = 2 * 3.14159265358979323846 / plain;
    if (wavelength < context / c.rope_high_freq_factor) return plain;
    if (wavelength > context / c.rope_low_freq_factor) return plain / c.rope_factor;
    const double smooth =
        (context / wavelength - c.rope_low_freq_factor) / (c.rope_high_freq_factor - c.rope_low_freq_factor);
    return (1 - smooth) * plain / c.rope_factor + smooth * plain;
  }
  return plain;
}

// Turns the pairs (i, i + D/2) of every head by position * frequency; sign -1 turns back.
void rotate(Vector& x, const ModelConfig& c, Size tokens, Size heads, Size sequence, double sign) {
  const Size dim = size(c.head_dim), half = dim / 2;
  for (Size t = 0; t < tokens; ++t) {
    for (Size h = 0; h < heads; ++h) {
      double* v = &x[(t * heads + h) * dim];
      for (Size i = 0; i < half; ++i) {
        const double angle = sign * static_cast<double>(t % sequence) * frequency(c, i);
        const double a = v[i], b = v[i + half];
        v[i] = a * std::cos(angle) - b * std::sin(angle);
        v[i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
}

// One query's view of the keys up to its own position.
struct Attention {
  const ModelConfig& c;
  Size rows, sequence;
  Size dim = size(c.head_dim), heads = size(c.heads), kv_heads = size(c.kv_heads);

  const double* key(const Vector& k, Size row, Size position, Size head) const {
    return &k[((row * sequence + position) * kv_heads + head / (heads / kv_heads)) * dim];
  }
  double* key(Vector& k, Size row, Size position, Size head) const {
    return const_cast<double*>(key(static_cast<const Vector&>(k), row, position, head));
  }
  Size query(Size row, Size position, Size head) const {
    return ((row * sequence + position) * heads + head) * dim;
  }

  Vector weights(const Vector& q, const Vector& k, Size row, Size position, Size head) const {
    Vector p(position + 1);
    for (Size j = 0; j <= position; ++j) {
      const double* kj = key(k, row, j, head);
      for (Size i = 0; i < dim; ++i) p[j] += q[query(row, position, head) + i] * kj[i];
      p[j] /= std::sqrt(static_cast<double>(dim));
    }
    const double most = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - most);
    for (double& x : p) x /= sum;
    return p;
  }

  template <typename F>
  void each_query(F f) const {
    for (Size row = 0; row < rows; ++row) {
      for (Size position = 0; position < sequence; ++position) {
        for (Size head = 0; head < heads; ++head) f(row, position, head);
      }
    }
  }

  Vector forward(const Vector& q, const Vector& k, const Vector& v) const {
    Vector out(q.size(), 0.0);
    each_query([&](Size row, Size position, Size head) {
      const Vector p = weights(q, k, row, position, head);
      for (Size j = 0; j <= position; ++j) {
        for (Size i = 0; i < dim; ++i) out[query(row, position, head) + i] += p[j] * key(v, row, j, head)[i];
      }
    });
    return out;
  }

  void backward(const Vector& d, const Vector& q, const Vector& k, const Vector& v, Vector& dq, Vector& dk,
                Vector& dv) const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
    each_query([&](Size row, Size position, Size head) {
      const Size at = query(row, position, head);
      const Vector p = weights(q, k, row, position, head);
      Vector dp(position + 1, 0.0);
      double dot = 0;
      for (Size j = 0; j <= position; ++j) {
        for (Size i = 0; i < dim; ++i) {
          dp[j] += d[at + i] * key(v, row, j, head)[i];
          key(dv, row, j, head)[i] += p[j] * d[at + i];
        }
        dot += dp[j] * p[j];
      }
      for (Size j = 0; j <= position; ++j) {
        const double ds = p[j] * (dp[j] - dot) * scale;
        for (Size i = 0; i < dim; ++i) {
          dq[at + i] += ds * key(k, row, j, head)[i];
          key(dk, row, j, head)[i] += ds * q[at + i];
        }
      }
    });
  }
};

struct Layer {
  Vector x, normed, q, k, v, mixed, middle, normed_middle, gate, up, hidden;
};

class Run {
 public:
  Run(const ParamTable& table, std::span<const double> parameters, Size rows, Size sequence)
      : table_(table),
        c_(table.config()),
        p_(parameters),
        tokens_(rows * sequence),
        sequence_(sequence),
        width_(size(c_.width)),
        attention_{c_, rows, sequence} {
    g_.assign(size(table.numel()), 0.0);
  }

  Result operator()(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets) {
    Vector x(tokens_ * width_);
    const double* embedding = weight("model.embed_tokens.weight");
    for (Size t = 0; t < tokens_; ++t)
      std::copy_n(embedding + size(tokens[t]) * width_, width_, &x[t * width_]);
    for (std::int64_t i = 0; i < c_.layers; ++i) x = forward(i, x);
    Result result;
    Vector dx = head(x, targets, result);
    for (std::int64_t i = c_.layers; i-- > 0;) dx = backward(i, dx);
    double* d_embedding = gradient("model.embed_tokens.weight");
    for (Size t = 0; t < tokens_; ++t) {
      for (Size i = 0; i < width_; ++i) d_embedding[size(tokens[t]) * width_ + i] += dx[t * width_ + i];
    }
    result.gradients = std::move(g_);
    return result;
  }

 private:
  const double* weight(const std::string& name) const { return p_.data() + table_.at(name).offset; }
  double* gradient(const std::string& name) { return g_.data() + table_.at(name).offset; }
  static std::string name(std::int64_t layer, const char* part) {
    return "model.layers." + std::to_string(layer) + "." + part + ".weight";
  }

  Vector forward(std::int64_t i, const Vector& x) {
    Layer& l = layers_.emplace_back();
    const Size inner = size(c_.query_width()), kv = size(c_.kv_width()), ffn = size(c_.ffn);
    l.x = x;
    l.normed = norm(x, weight(name(i, "input_layernorm")), tokens_, width_, c_.norm_eps);
    l.q = linear(l.normed, weight(name(i, "self_attn.q_proj")), tokens_, width_, inner);
    l.k = linear(l.normed, weight(name(i, "self_attn.k_proj")), tokens_, width_, kv);
    l.v = linear(l.normed, weight(name(i, "self_attn.v_proj")), tokens_, width_, kv);
    rotate(l.q, c_, tokens_, size(c_.heads), sequence_, 1);
    rotate(l.k, c_, tokens_, size(c_.kv_heads), sequence_, 1);
    l.mixed = attention_.forward(l.q, l.k, l.v);
    l.middle = linear(l.mixed, weight(name(i, "self_attn.o_proj")), tokens_, inner, width_);
    for (Size n = 0; n < x.size(); ++n) l.middle[n] += x[n];

    l.normed_middle =
        norm(l.middle, weight(name(i, "post_attention_layernorm")), tokens_, width_, c_.norm_eps);
    l.gate = linear(l.normed_middle, weight(name(i, "mlp.gate_proj")), tokens_, width_, ffn);
    l.up = linear(l.normed_middle, weight(name(i, "mlp.up_proj")), tokens_, width_, ffn);
    l.hidden.resize(l.gate.size());
    for (Size n = 0; n < l.gate.size(); ++n) l.hidden[n] = l.gate[n] / (1 + std::exp(-l.gate[n])) * l.up[n];
    Vector y = linear(l.hidden, weight(name(i, "mlp.down_proj")), tokens_, ffn, width_);
    for (Size n = 0; n < y.size(); ++n) y[n] += l.middle[n];
    return y;
  }

  Vector backward(std::int64_t i, const Vector& dy) {
    Layer& l = layers_[size(i)];
    const Size inner = size(c_.query_width()), kv = size(c_.kv_width()), ffn = size(c_.ffn);
    Vector d_hidden(l.hidden.size(), 0.0), d_gate(l.gate.size()), d_up(l.up.size());
    linear_backward(dy, l.hidden, weight(name(i, "mlp.down_proj")), d_hidden,
                    gradient(name(i, "mlp.down_proj")), tokens_, ffn, width_);
    for (Size n = 0; n < d_hidden.size(); ++n) {
      const double sigmoid = 1 / (1 + std::exp(-l.gate[n]));
      d_gate[n] = d_hidden[n] * l.up[n] * sigmoid * (1 + l.gate[n] * (1 - sigmoid));
      d_up[n] = d_hidden[n] * l.gate[n] * sigmoid;
    }
    Vector d_normed(tokens_ * width_, 0.0), d_middle = dy;
    linear_backward(d_gate, l.normed_middle, weight(name(i, "mlp.gate_proj")), d_normed,
                    gradient(name(i, "mlp.gate_proj")), tokens_, width_, ffn);
    linear_backward(d_up, l.normed_middle, weight(name(i, "mlp.up_proj")), d_normed,
                    gradient(name(i, "mlp.up_proj")), tokens_, width_, ffn);
    norm_backward(d_normed, l.middle, weight(name(i, "post_attention_layernorm")), d_middle,
                  gradient(name(i, "post_attention_layernorm")), tokens_, width_, c_.norm_eps);

    Vector d_mixed(l.mixed.size(), 0.0), dq(l.q.size(), 0.0), dk(l.k.size(), 0.0), dv(l.v.size(), 0.0);
    linear_backward(d_middle, l.mixed, weight(name(i, "self_attn.o_proj")), d_mixed,
                    gradient(name(i, "self_attn.o_proj")), tokens_, inner, width_);
    attention_.backward(d_mixed, l.q, l.k, l.v, dq, dk, dv);
    rotate(dq, c_, tokens_, size(c_.heads), sequence_, -1);
    rotate(dk, c_, tokens_, size(c_.kv_heads), sequence_, -1);
    Vector d_input(tokens_ * width_, 0.0), dx = d_middle;
    const auto projection = [&](const char* part, const Vector& d, Size out) {
      linear_backward(d, l.normed, weight(name(i, part)), d_input, gradient(name(i, part)), tokens_, width_,
                      out);
    };
    projection("self_attn.q_proj", dq, inner);
    projection("self_attn.k_proj", dk, kv);
    projection("self_attn.v_proj", dv, kv);
    norm_backward(d_input, l.x, weight(name(i, "input_layernorm")), dx, gradient(name(i, "input_layernorm")),
                  tokens_, width_, c_.norm_eps);
    return dx;
  }

  Vector head(const Vector& x, std::span<const std::int64_t> targets, Result& result) {
    const Size vocab = size(c_.vocab);
    const std::string head_name = c_.tied ? "model.embed_tokens.weight" : "lm_head.weight";
    const Vector normed = norm(x, weight("model.norm.weight"), tokens_, width_, c_.norm_eps);
    result.logits = linear(normed, weight(head_name), tokens_, width_, vocab);
    Vector d_logits(result.logits.size(), 0.0);
    for (Size t = 0; t < tokens_; ++t) {
      if (targets[t] < 0) continue;
      const double* row = &result.logits[t * vocab];
      const double most = *std::max_element(row, row + vocab);
      double sum = 0;
      for (Size v = 0; v < vocab; ++v) sum += std::exp(row[v] - most);
      for (Size v = 0; v < vocab; ++v) d_logits[t * vocab + v] = std::exp(row[v] - most) / sum;
      d_logits[t * vocab + size(targets[t])] -= 1;
      result.loss_sum += std::log(sum) - (row[size(targets[t])] - most);
      ++result.tokens;
    }
    Vector d_normed(normed.size(), 0.0), dx(normed.size(), 0.0);
    linear_backward(d_logits, normed, weight(head_name), d_normed, gradient(head_name), tokens_, width_,
                    vocab);
    norm_backward(d_normed, x, weight("model.norm.weight"), dx, gradient("model.norm.weight"), tokens_,
                  width_, c_.norm_eps);
    return dx;
  }

  const ParamTable& table_;
  const ModelConfig& c_;
  std::span<const double> p_;
  Size tokens_, sequence_, width_;
  Attention attention_;
  Vector g_;
  std::vector<Layer> layers_;
};

}  // namespace

Result run(const ParamTable& table, std::span<const double> parameters, std::span<const std::int64_t> tokens,
           std::span<const std::int64_t> targets, std::int64_t rows, std::int64_t sequence) {
  MUSTER_ASSERT(parameters.size() == size(table.numel()));
  MUSTER_ASSERT(tokens.size() == size(rows * sequence) && targets.size() == tokens.size());
  return Run(table, parameters, size(rows), size(sequence))(tokens, targets);
}

}  // namespace muster::train::reference
