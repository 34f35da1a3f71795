#include "train/model/detail/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "train/target_clones.h"

#define MUSTER_INLINE [[gnu::always_inline]] inline
#define MUSTER_SIMD _Pragma("omp simd")

namespace muster::train::kernels {
namespace {

constexpr Index kGrain = 16;        // rows a task: below that a thread costs more than it saves
constexpr Index kPartialRows = 32;  // rows summed into one partial weight gradient

// exp on [-87, 88], about 2 ulp; Cephes' polynomial. Written so that the compiler makes vectors of it.
MUSTER_INLINE float fast_exp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504088896341F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float value = p * r * r + r + 1.0F;
  const std::int32_t exponent = (std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound))
                                << 23;
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(value) + exponent);
}
MUSTER_INLINE double fast_exp(double x) { return std::exp(x); }

template <typename T>
MUSTER_INLINE void rms_rows(const T* x, const T* w, T* y, Wide<T>* rstd, Index rows, Index width,
                            double eps) {
  using A = Wide<T>;
  for (Index t = 0; t < rows; ++t) {
    const T* in = x + t * width;
    T* out = y + t * width;
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = 0; i < width; ++i) sum += A{in[i]} * A{in[i]};
    const A r = A{1} / std::sqrt(sum / static_cast<A>(width) + static_cast<A>(eps));
    rstd[t] = r;
    MUSTER_SIMD
    for (Index i = 0; i < width; ++i) out[i] = static_cast<T>(A{in[i]} * r * A{w[i]});
  }
}

template <typename T>
MUSTER_INLINE void rms_back_rows(const T* dy, const T* x, const T* w, const Wide<T>* rstd, T* dx,
                                 Wide<T>* partial, Index rows, Index width) {
  using A = Wide<T>;
  for (Index i = 0; i < width; ++i) partial[i] = 0;
  for (Index t = 0; t < rows; ++t) {
    const T* in = x + t * width;
    const T* d = dy + t * width;
    T* out = dx + t * width;
    const A r = rstd[t];
    A dot = 0;
#pragma omp simd reduction(+ : dot)
    for (Index i = 0; i < width; ++i) dot += A{d[i]} * A{w[i]} * A{in[i]};
    const A scale = dot * r * r / static_cast<A>(width);
    MUSTER_SIMD
    for (Index i = 0; i < width; ++i) {
      out[i] = static_cast<T>(A{out[i]} + r * (A{d[i]} * A{w[i]} - scale * A{in[i]}));
      partial[i] += A{d[i]} * A{in[i]} * r;
    }
  }
}

template <typename T>
MUSTER_INLINE void turn(T* x, const Wide<T>* c, const Wide<T>* s, Index half) {
  MUSTER_SIMD
  for (Index i = 0; i < half; ++i) {
    const Wide<T> a = x[i], b = x[i + half];
    x[i] = static_cast<T>(a * c[i] - b * s[i]);
    x[i + half] = static_cast<T>(b * c[i] + a * s[i]);
  }
}

template <typename T>
MUSTER_INLINE void rope_rows(T* qkv, const Wide<T>* cosine, const Wide<T>* sine, Index begin, Index end,
                             const Heads& heads) {
  const Index half = heads.dim / 2;
  for (Index t = begin; t < end; ++t) {
    const Index position = heads.position(t);
    T* row = qkv + t * heads.columns();
    for (Index h = 0; h < heads.query + heads.key; ++h) {
      turn(row + h * heads.dim, cosine + position * half, sine + position * half, half);
    }
  }
}

// out = the sum of `group` neighbours of in, turned back when `c` is given.
template <typename T, typename A>
MUSTER_INLINE void fold_group(const A* in, T* out, Index group, Index dim, const A* c, const A* s) {
  constexpr Index kRun = 64;
  const Index half = dim / 2;
  for (Index begin = 0; begin < half; begin += kRun) {
    const Index count = half - begin < kRun ? half - begin : kRun;
    A a[kRun], b[kRun];
    for (Index g = 0; g < group; ++g) {
      const A* from = in + g * dim + begin;
      MUSTER_SIMD
      for (Index i = 0; i < count; ++i) {
        a[i] = g == 0 ? from[i] : a[i] + from[i];
        b[i] = g == 0 ? from[i + half] : b[i] + from[i + half];
      }
    }
    T* to = out + begin;
    MUSTER_SIMD
    for (Index i = 0; i < count; ++i) {
      const A cosine = c == nullptr ? A{1} : c[begin + i], sine = c == nullptr ? A{0} : s[begin + i];
      to[i] = static_cast<T>(a[i] * cosine + b[i] * sine);
      to[i + half] = static_cast<T>(b[i] * cosine - a[i] * sine);
    }
  }
}

template <typename T, typename A>
MUSTER_INLINE void rope_back_rows(const A* dq, const A* dk, const A* dv, const A* cosine, const A* sine,
                                  T* dqkv, Index begin, Index end, const Heads& heads) {
  const Index dim = heads.dim, half = dim / 2, group = heads.query / heads.key;
  for (Index t = begin; t < end; ++t) {
    const Index position = heads.position(t);
    const A* c = cosine + position * half;
    const A* s = sine + position * half;
    T* row = dqkv + t * heads.columns();
    const Index from = t * heads.query * dim;
    for (Index h = 0; h < heads.query; ++h) fold_group(dq + from + h * dim, row + h * dim, 1, dim, c, s);
    row += heads.query * dim;
    for (Index h = 0; h < heads.key; ++h)
      fold_group(dk + from + h * group * dim, row + h * dim, group, dim, c, s);
    row += heads.key * dim;
    for (Index h = 0; h < heads.key; ++h) {
      fold_group<T, A>(dv + from + h * group * dim, row + h * dim, group, dim, nullptr, nullptr);
    }
  }
}

template <typename T>
MUSTER_INLINE void swiglu_rows(const T* gu, T* h, Index rows, Index ffn) {
  using A = Wide<T>;
  for (Index t = 0; t < rows; ++t) {
    const T* gate = gu + t * 2 * ffn;
    const T* up = gate + ffn;
    T* out = h + t * ffn;
    MUSTER_SIMD
    for (Index i = 0; i < ffn; ++i) {
      const A g = gate[i];
      out[i] = static_cast<T>(g / (A{1} + fast_exp(-g)) * A{up[i]});
    }
  }
}

template <typename T>
MUSTER_INLINE void swiglu_back_rows(const T* dh, const T* gu, T* dgu, Index rows, Index ffn) {
  using A = Wide<T>;
  for (Index t = 0; t < rows; ++t) {
    const T* gate = gu + t * 2 * ffn;
    const T* up = gate + ffn;
    const T* d = dh + t * ffn;
    T* dgate = dgu + t * 2 * ffn;
    T* dup = dgate + ffn;
    MUSTER_SIMD
    for (Index i = 0; i < ffn; ++i) {
      const A g = gate[i], u = up[i], dy = d[i];
      const A sigmoid = A{1} / (A{1} + fast_exp(-g));
      const A silu = g * sigmoid;
      dgate[i] = static_cast<T>(dy * u * (sigmoid + silu * (A{1} - sigmoid)));
      dup[i] = static_cast<T>(dy * silu);
    }
  }
}

template <typename T>
MUSTER_INLINE double entropy_row(T* x, Index target, Index vocab, bool gradient) {
  T most = x[0];
#pragma omp simd reduction(max : most)
  for (Index i = 0; i < vocab; ++i) most = x[i] > most ? x[i] : most;
  const double wanted = static_cast<double>(x[target]) - static_cast<double>(most);
  T sum = 0;
  if (gradient) {
#pragma omp simd reduction(+ : sum)
    for (Index i = 0; i < vocab; ++i) {
      const T e = fast_exp(x[i] - most);
      x[i] = e;
      sum += e;
    }
    const T inverse = T{1} / sum;
    MUSTER_SIMD
    for (Index i = 0; i < vocab; ++i) x[i] *= inverse;
    x[target] -= T{1};
  } else {
#pragma omp simd reduction(+ : sum)
    for (Index i = 0; i < vocab; ++i) sum += fast_exp(x[i] - most);
  }
  return std::log(static_cast<double>(sum)) - wanted;
}

template <typename T>
MUSTER_INLINE void entropy_rows(T* logits, const Index* target, double* loss, Index rows, Index vocab,
                                bool gradient) {
  for (Index t = 0; t < rows; ++t) {
    T* x = logits + t * vocab;
    if (target[t] >= 0) {
      loss[t] = entropy_row(x, target[t], vocab, gradient);
      continue;
    }
    loss[t] = 0;
    if (gradient) std::memset(x, 0, static_cast<std::size_t>(vocab) * sizeof(T));
  }
}

template <typename T>
MUSTER_INLINE void part_row(const T* x, Index target, double* greatest, double* sum, double* wanted,
                            Index vocab) {
  T most = x[0];
#pragma omp simd reduction(max : most)
  for (Index i = 0; i < vocab; ++i) most = x[i] > most ? x[i] : most;
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (Index i = 0; i < vocab; ++i) total += fast_exp(x[i] - most);
  *greatest = static_cast<double>(most);
  *sum = static_cast<double>(total);
  *wanted = target >= 0 ? static_cast<double>(x[target]) : 0;
}

template <typename T>
MUSTER_INLINE void gradient_row(T* x, Index target, double greatest, double sum, Index vocab) {
  const T most = static_cast<T>(greatest);
  const T inverse = static_cast<T>(1 / sum);
  MUSTER_SIMD
  for (Index i = 0; i < vocab; ++i) x[i] = fast_exp(x[i] - most) * inverse;
  if (target >= 0) x[target] -= T{1};
}

// The clones: of the layers, for all types; of the loss, which is never in bf16.
#define MUSTER_LAYER_KERNELS(T, A)                                                                           \
  MUSTER_CLONES void run_rms(const T* x, const T* w, T* y, A* r, Index rows, Index width, double eps) {      \
    rms_rows(x, w, y, r, rows, width, eps);                                                                  \
  }                                                                                                          \
  MUSTER_CLONES void run_rms_back(const T* dy, const T* x, const T* w, const A* r, T* dx, A* partial,        \
                                  Index rows, Index width) {                                                 \
    rms_back_rows(dy, x, w, r, dx, partial, rows, width);                                                    \
  }                                                                                                          \
  MUSTER_CLONES void run_rope(T* qkv, const A* c, const A* s, Index begin, Index end, const Heads& heads) {  \
    rope_rows(qkv, c, s, begin, end, heads);                                                                 \
  }                                                                                                          \
  MUSTER_CLONES void run_rope_back(const A* dq, const A* dk, const A* dv, const A* c, const A* s, T* dqkv,   \
                                   Index begin, Index end, const Heads& heads) {                             \
    rope_back_rows(dq, dk, dv, c, s, dqkv, begin, end, heads);                                               \
  }                                                                                                          \
  MUSTER_CLONES void run_swiglu(const T* gu, T* h, Index rows, Index ffn) { swiglu_rows(gu, h, rows, ffn); } \
  MUSTER_CLONES void run_swiglu_back(const T* dh, const T* gu, T* dgu, Index rows, Index ffn) {              \
    swiglu_back_rows(dh, gu, dgu, rows, ffn);                                                                \
  }
MUSTER_LAYER_KERNELS(float, float)
MUSTER_LAYER_KERNELS(double, double)
MUSTER_LAYER_KERNELS(BFloat16, float)
#undef MUSTER_LAYER_KERNELS

#define MUSTER_LOSS_KERNELS(T)                                                                         \
  MUSTER_CLONES void run_entropy(T* x, const Index* target, double* loss, Index rows, Index vocab,     \
                                 bool gradient) {                                                      \
    entropy_rows(x, target, loss, rows, vocab, gradient);                                              \
  }                                                                                                    \
  MUSTER_CLONES void run_part(const T* x, Index target, double* greatest, double* sum, double* wanted, \
                              Index vocab) {                                                           \
    part_row(x, target, greatest, sum, wanted, vocab);                                                 \
  }                                                                                                    \
  MUSTER_CLONES void run_gradient(T* x, Index target, double greatest, double sum, Index vocab) {      \
    gradient_row(x, target, greatest, sum, vocab);                                                     \
  }
MUSTER_LOSS_KERNELS(float)
MUSTER_LOSS_KERNELS(double)
#undef MUSTER_LOSS_KERNELS

}  // namespace

template <typename T>
void rms_norm(const T* x, const T* w, T* y, Wide<T>* rstd, Index tokens, Index width, double eps) {
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    run_rms(x + begin * width, w, y + begin * width, rstd + begin, end - begin, width, eps);
  });
}

Index rms_partial_numel(Index tokens, Index width) {
  return (tokens + kPartialRows - 1) / kPartialRows * width;
}

template <typename T>
void rms_norm_backward(const T* dy, const T* x, const T* w, const Wide<T>* rstd, T* dx, Wide<T>* dw,
                       bool fresh, Wide<T>* partial, Index tokens, Index width) {
  const Index parts = (tokens + kPartialRows - 1) / kPartialRows;
  at::parallel_for(0, parts, 1, [&](Index begin, Index end) {
    for (Index p = begin; p < end; ++p) {
      const Index t = p * kPartialRows;
      run_rms_back(dy + t * width, x + t * width, w, rstd + t, dx + t * width, partial + p * width,
                   std::min(kPartialRows, tokens - t), width);
    }
  });
  if (parts == 0) {
    if (fresh) std::fill(dw, dw + width, Wide<T>{0});
    return;
  }
  for (Index p = 1; p < parts; ++p) {
    for (Index i = 0; i < width; ++i) partial[i] += partial[p * width + i];
  }
  for (Index i = 0; i < width; ++i) dw[i] = fresh ? partial[i] : dw[i] + partial[i];
}

template <typename T>
void rope(T* qkv, const Wide<T>* cosine, const Wide<T>* sine, Index tokens, const Heads& heads) {
  at::parallel_for(0, tokens, kGrain,
                   [&](Index begin, Index end) { run_rope(qkv, cosine, sine, begin, end, heads); });
}

template <typename T>
void repeat_heads(const T* qkv, T* k, T* v, Index tokens, const Heads& heads) {
  const Index group = heads.query / heads.key;
  const std::size_t bytes = static_cast<std::size_t>(heads.dim) * sizeof(T);
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const T* from = qkv + t * heads.columns() + heads.query * heads.dim;
      for (Index h = 0; h < heads.query; ++h) {
        const Index to = (t * heads.query + h) * heads.dim;
        std::memcpy(k + to, from + h / group * heads.dim, bytes);
        std::memcpy(v + to, from + (heads.key + h / group) * heads.dim, bytes);
      }
    }
  });
}

template <typename T>
void rope_backward(const Wide<T>* dq, const Wide<T>* dk, const Wide<T>* dv, const Wide<T>* cosine,
                   const Wide<T>* sine, T* dqkv, Index tokens, const Heads& heads) {
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    run_rope_back(dq, dk, dv, cosine, sine, dqkv, begin, end, heads);
  });
}

template <typename T>
void swiglu(const T* gu, T* h, Index tokens, Index ffn) {
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    run_swiglu(gu + begin * 2 * ffn, h + begin * ffn, end - begin, ffn);
  });
}

template <typename T>
void swiglu_backward(const T* dh, const T* gu, T* dgu, Index tokens, Index ffn) {
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    run_swiglu_back(dh + begin * ffn, gu + begin * 2 * ffn, dgu + begin * 2 * ffn, end - begin, ffn);
  });
}

template <typename T>
void cross_entropy(T* logits, const Index* target, double* loss, Index tokens, Index vocab, bool gradient) {
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    run_entropy(logits + begin * vocab, target + begin, loss + begin, end - begin, vocab, gradient);
  });
}

template <typename T>
void softmax_parts(const T* logits, const Index* target, double* greatest, double* sum, double* wanted,
                   Index tokens, Index vocab) {
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t)
      run_part(logits + t * vocab, target[t], greatest + t, sum + t, wanted + t, vocab);
  });
}

template <typename T>
void softmax_gradient(T* logits, const Index* target, const double* greatest, const double* sum, Index tokens,
                      Index vocab) {
  at::parallel_for(0, tokens, kGrain, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      T* x = logits + t * vocab;
      if (target[t] == kIgnored) {
        std::memset(x, 0, static_cast<std::size_t>(vocab) * sizeof(T));
      } else {
        run_gradient(x, target[t], greatest[t], sum[t], vocab);
      }
    }
  });
}

template <typename T>
void embed(const T* table, const Index* token, T* y, Index tokens, Index width) {
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(T);
  for (Index t = 0; t < tokens; ++t) {
    if (token[t] >= 0) {
      std::memcpy(y + t * width, table + token[t] * width, bytes);
    } else {
      std::fill_n(y + t * width, width, T{});
    }
  }
}

template <typename T>
void embed_backward(const T* dy, const Index* token, Wide<T>* g, bool fresh, Index* order, Index* first,
                    Index tokens, Index width, Index vocab) {
  using A = Wide<T>;
  // Counting sort: order[first[v] .. first[v + 1]) are the tokens of row v, in token order.
  std::fill(first, first + vocab + 1, Index{0});
  for (Index t = 0; t < tokens; ++t) {
    if (token[t] >= 0) ++first[token[t] + 1];
  }
  for (Index v = 0; v < vocab; ++v) first[v + 1] += first[v];
  for (Index t = 0; t < tokens; ++t) {
    if (token[t] >= 0) order[first[token[t]]++] = t;
  }
  for (Index v = vocab; v > 0; --v) first[v] = first[v - 1];
  first[0] = 0;
  at::parallel_for(0, vocab, 256, [&](Index begin, Index end) {
    std::vector<A> sum(static_cast<std::size_t>(width));
    for (Index v = begin; v < end; ++v) {
      A* row = g + v * width;
      if (fresh) std::fill(row, row + width, A{0});
      if (first[v] == first[v + 1]) continue;
      std::fill(sum.begin(), sum.end(), A{0});
      for (Index n = first[v]; n < first[v + 1]; ++n) {
        const T* d = dy + order[n] * width;
        for (Index i = 0; i < width; ++i) sum[static_cast<std::size_t>(i)] += d[i];
      }
      for (Index i = 0; i < width; ++i) row[i] += sum[static_cast<std::size_t>(i)];
    }
  });
}

#define MUSTER_INSTANTIATE_LAYERS(T, A)                                                                      \
  template void rms_norm<T>(const T*, const T*, T*, A*, Index, Index, double);                               \
  template void rms_norm_backward<T>(const T*, const T*, const T*, const A*, T*, A*, bool, A*, Index,        \
                                     Index);                                                                 \
  template void rope<T>(T*, const A*, const A*, Index, const Heads&);                                        \
  template void repeat_heads<T>(const T*, T*, T*, Index, const Heads&);                                      \
  template void rope_backward<T>(const A*, const A*, const A*, const A*, const A*, T*, Index, const Heads&); \
  template void swiglu<T>(const T*, T*, Index, Index);                                                       \
  template void swiglu_backward<T>(const T*, const T*, T*, Index, Index);                                    \
  template void embed<T>(const T*, const Index*, T*, Index, Index);                                          \
  template void embed_backward<T>(const T*, const Index*, A*, bool, Index*, Index*, Index, Index, Index);
MUSTER_INSTANTIATE_LAYERS(float, float)
MUSTER_INSTANTIATE_LAYERS(double, double)
MUSTER_INSTANTIATE_LAYERS(BFloat16, float)
#undef MUSTER_INSTANTIATE_LAYERS

#define MUSTER_INSTANTIATE_LOSS(T)                                                                 \
  template void cross_entropy<T>(T*, const Index*, double*, Index, Index, bool);                   \
  template void softmax_parts<T>(const T*, const Index*, double*, double*, double*, Index, Index); \
  template void softmax_gradient<T>(T*, const Index*, const double*, const double*, Index, Index);
MUSTER_INSTANTIATE_LOSS(float)
MUSTER_INSTANTIATE_LOSS(double)
#undef MUSTER_INSTANTIATE_LOSS

}  // namespace muster::train::kernels
