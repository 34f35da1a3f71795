// The element-wise kernels of the model between its GEMMs, on raw row-major arrays (instantiated in
// kernels.cc). Each runs on the caller's at::parallel_for threads; no result depends on their number.
//
// T is float or double; for all but the loss also BFloat16, which is computed in Wide<T>, fp32, and rounded
// when it is stored.
//
// Shapes: T tokens = rows x sequence; W width; H query heads, K key / value heads, D head dimension.
#pragma once

#include <cstdint>

#include "train/layout/dtype.h"

namespace muster::train::kernels {

using Index = std::int64_t;

// y[t] = x[t] * rstd[t] * w, rstd[t] = 1 / sqrt(mean(x[t]^2) + eps).
template <typename T>
void rms_norm(const T* x, const T* w, T* y, Wide<T>* rstd, Index tokens, Index width, double eps);

// dx[t] += gradient of rms_norm's input (dx holds the residual branch's gradient on entry);
// dw = (or +=, unless fresh) gradient of the weight. partial: scratch of rms_partial_numel(T, W).
template <typename T>
void rms_norm_backward(const T* dy, const T* x, const T* w, const Wide<T>* rstd, T* dx, Wide<T>* dw,
                       bool fresh, Wide<T>* partial, Index tokens, Index width);
Index rms_partial_numel(Index tokens, Index width);

struct Heads {
  Index query;     // H
  Index key;       // K
  Index dim;       // D
  Index sequence;  // position of token t is t % sequence + first, or positions[t] if there are any
  Index first = 0;
  const Index* positions = nullptr;
  Index position(Index t) const { return positions != nullptr ? positions[t] : first + t % sequence; }
  Index columns() const { return (query + 2 * key) * dim; }
};

// Turns the query and key parts of qkv [T, (H + 2K) D] in place. cosine, sine: [positions, D / 2].
template <typename T>
void rope(T* qkv, const Wide<T>* cosine, const Wide<T>* sine, Index tokens, const Heads& heads);

// One key / value head for every query head: k and v of qkv repeated to [T, H, D].
template <typename T>
void repeat_heads(const T* qkv, T* k, T* v, Index tokens, const Heads& heads);

// The way back: dq, dk, dv [T, H, D] -> dqkv [T, (H + 2K) D], turned back, groups summed in head order.
template <typename T>
void rope_backward(const Wide<T>* dq, const Wide<T>* dk, const Wide<T>* dv, const Wide<T>* cosine,
                   const Wide<T>* sine, T* dqkv, Index tokens, const Heads& heads);

// gu [T, 2F] = gate | up; h [T, F] = silu(gate) * up.
template <typename T>
void swiglu(const T* gu, T* h, Index tokens, Index ffn);

// dgu from dh. dgu may be gu.
template <typename T>
void swiglu_backward(const T* dh, const T* gu, T* dgu, Index tokens, Index ffn);

// loss[t] = -log softmax(logits[t])[target[t]], 0 where the target is ignored. With `gradient`, logits become
// softmax - onehot (0 where ignored).
template <typename T>
void cross_entropy(T* logits, const Index* target, double* loss, Index tokens, Index vocab, bool gradient);

// A target that takes no part in the loss, and one (or a token) of another part of a cut vocabulary.
inline constexpr Index kIgnored = -1;
inline constexpr Index kElsewhere = -2;

// cross_entropy where each rank has some columns of the logits, in two steps. First, of every token: the
// greatest logit, the sum of exp(logit - greatest), and the target's logit, 0 if it is not here.
template <typename T>
void softmax_parts(const T* logits, const Index* target, double* greatest, double* sum, double* wanted,
                   Index tokens, Index vocab);
// Then, with the greatest logit and the sum over all columns: logits become softmax - onehot (0 for an
// ignored target, -1).
template <typename T>
void softmax_gradient(T* logits, const Index* target, const double* greatest, const double* sum, Index tokens,
                      Index vocab);

// y[t] = table[token[t]], 0 where the token is negative.
template <typename T>
void embed(const T* table, const Index* token, T* y, Index tokens, Index width);

// g[row] (+)= sum over the tokens of that row, in token order; negative tokens have none. `fresh`: all other
// rows become 0. order: scratch of T; first: scratch of vocab + 1.
template <typename T>
void embed_backward(const T* dy, const Index* token, Wide<T>* g, bool fresh, Index* order, Index* first,
                    Index tokens, Index width, Index vocab);

}  // namespace muster::train::kernels
