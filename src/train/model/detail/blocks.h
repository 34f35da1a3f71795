// The blocks of the decoder, each with an explicit forward(x, saved) -> y and backward(dy, saved) -> dx that
// writes its weights' gradients into the flat gradient buffer.
//
//   Embedding    tokens -> [T, W]
//   Attention    RMSNorm, q|k|v, RoPE, causal attention, o, residual
//   Mlp          RMSNorm, gate|up, SwiGLU, down, residual
//   Head         RMSNorm, logits, loss and its gradient
//
// T = rows x sequence tokens, W = width. Under tensor parallelism a block has its part of the heads, of the
// inner width and of the vocabulary, and meets the other parts at the seam (seam.h); under sequence
// parallelism x, y and their gradients have this rank's rows only. Blocks hold views of the flat buffers and
// no state; what a forward leaves for its backward is in Saved, owned by the caller. What costs no matrix
// product to make again is in Cheap: if the context drops it, backward makes it anew, from the same numbers
// by the same kernels, so with the same bits. Gradients: `fresh` overwrites, otherwise g += its own, computed
// apart first, so that micro-batches on one rank and on many sum in the same way. Called under NoGradGuard,
// by one thread at a time per Context.
#pragma once

#include <array>
#include <vector>

#include "train/model/detail/kernels.h"
#include "train/model/detail/product.h"
#include "train/model/detail/seam.h"
#include "train/model/flat_buffer.h"
#include "train/model/params.h"
#include "train/tensor.h"

namespace muster::train::detail {

struct Weight {
  at::Tensor value;
  at::Tensor gradient;  // of the wide type
};

// The documents of a micro-batch that attention stays in: runs of a row, which cover all of it.
struct Documents {
  struct Part {
    std::int64_t row, begin, length;
  };
  std::vector<Part> parts;
  std::vector<std::int64_t> positions;  // of each token in its document
};

// The shape of one micro-batch.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t sequence = 0;
  const Documents* documents = nullptr;  // null: a row is one text
  std::int64_t tokens() const { return rows * sequence; }
};

// What a block needs again in its backward and could compute from the rest of its Saved: the normed input,
// as it is and gathered at the seam; keys and values repeated; the hidden activation.
struct Cheap {
  Buffer normed, entered, keys, values, hidden;
};

// What all blocks of a model share: the tensor-parallel seam, and work space whose content does not outlive a
// call.
struct Context {
  Seam seam;
  bool drops_cheap = false;  // selective activation checkpointing
  Cheap cheap;               // of the block at work, if so
  Products products;
  Buffer narrow;                 // [T, W]
  Buffer wide;                   // the widest activation gradient of the block
  Buffer inner;                  // attention: [T, H D]; MLP: [T, F]
  Buffer entered;                // [T, W], the gradient inside the seam
  Buffer partial;                // RMSNorm weight gradients
  Buffer queries, keys, values;  // their gradients, in the wide type, where attention is cut into documents
  std::vector<std::int64_t> order, first;  // embedding: tokens by row
  std::vector<std::int64_t> local;         // tokens or targets as rows of the vocabulary's part
  std::vector<double> losses, mine, all;
};

// cos and sin of position * rope_frequency(i), [max_sequence, D / 2], computed in fp64, of the wide type.
struct Rotary {
  at::Tensor cosine, sine;
};
Rotary make_rotary(const ModelConfig& config, at::ScalarType type);

struct Embedding {
  Weight table;  // rows [first, first + table.value.size(0)) of the vocabulary
  std::int64_t first = 0;

  void forward(const std::int64_t* tokens, Shape shape, at::Tensor& y, Context& context) const;
  void backward(const std::int64_t* tokens, Shape shape, const at::Tensor& dy, bool fresh,
                Context& context) const;
};

struct Attention {
  const ModelConfig* config;
  const Rotary* rotary;
  Weight norm, qkv, output;

  struct Saved {
    at::Tensor x;  // the input, owned by the caller
    Buffer rstd_, qkv_, mixed_;
    Cheap cheap;
    at::Tensor normed, rstd, qkv, q, k, v;  // q, k, v: [rows, H, sequence, D]
    at::Tensor mixed;                       // [rows, H, sequence, D], stored token-major
    std::vector<at::Tensor> logsumexp;      // of all rows, or of each document
  };
  // y: of the shape of x, not x itself; null: only what is saved is wanted.
  void forward(const at::Tensor& x, at::Tensor* y, Shape shape, Saved& saved, Context& context) const;
  // d: dy on entry, dx on return.
  void backward(at::Tensor& d, Shape shape, Saved& saved, bool fresh, Context& context) const;

 private:
  void normalize(Shape shape, Saved& saved, Context& context) const;
  void spread_heads(Shape shape, Saved& saved, Context& context) const;
  void attend(Shape shape, Saved& saved) const;
  std::array<at::Tensor, 3> attend_backward(const at::Tensor& d_mixed, Shape shape, const Saved& saved,
                                            Context& context) const;
};

struct Mlp {
  const ModelConfig* config;
  Weight norm, gate_up, down;

  struct Saved {
    at::Tensor x;
    Buffer rstd_, gate_up_;
    Cheap cheap;
    at::Tensor normed, rstd, gate_up, hidden;
  };
  void forward(const at::Tensor& x, at::Tensor* y, Shape shape, Saved& saved, Context& context) const;
  void backward(at::Tensor& d, Shape shape, Saved& saved, bool fresh, Context& context) const;

 private:
  void normalize(Shape shape, Saved& saved, Context& context) const;
  void activate(Shape shape, Saved& saved, Context& context) const;
};

struct Head {
  const ModelConfig* config;
  Weight norm, output;  // output: rows [first, first + output.value.size(0)) of the vocabulary
  std::int64_t first = 0;
  std::int64_t rows_max = 0;  // of the ranks that cut the vocabulary, which must make the same chunks
  std::int64_t logit_bytes_max = std::int64_t{64} << 20;  // of one chunk

  struct Saved {
    Buffer normed_, rstd_, logits_, entered_, output_;
  };
  // Sum of the token losses. With dx (shape of x) also all gradients, chunk by chunk, so that the logits of a
  // large vocabulary never stand in memory at once; backward is therefore not a call of its own. `shape`, and
  // the targets, are of the whole micro-batch. The same loss on every tensor-parallel rank.
  double loss(const at::Tensor& x, Shape shape, const std::int64_t* targets, Saved& saved, at::Tensor* dx,
              bool fresh, Context& context) const;
  // For one rank: [T, vocabulary], of the wide type, as inside loss().
  at::Tensor logits(const at::Tensor& x, Saved& saved, Context& context) const;
};

}  // namespace muster::train::detail
