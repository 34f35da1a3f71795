// The parameters of a Llama-class model as data: one table that initialisation, optimizer, checkpoints,
// import / export and (later) sharding all read.
//
// Global tensors are Hugging Face's: names, shapes and order (q, k, v, gate, up apart; a tied head is not
// stored). A ParamTable lays them one after the other, without padding, in one flat buffer; so q|k|v and
// gate|up, which are neighbours there, are each one matrix to a GEMM. Fusion is placement only and never
// written to disk.
//
// Everything here is a value and immutable after creation: any thread may read it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/layout/layout.h"

namespace muster::train {

struct ModelConfig {
  std::int64_t vocab = 0;
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // divides heads; heads / kv_heads query heads share one
  std::int64_t head_dim = 0;  // even, for rotate-half RoPE; 0 in a file means width / heads
  std::int64_t ffn = 0;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  bool tied = false;  // the head is the embedding
  std::int64_t max_sequence = 0;
  double init_std = 0.02;  // o_proj and down_proj: divided by sqrt(2 * layers)

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }

  bool operator==(const ModelConfig&) const = default;
};

// Checks every limit; the message names the key, its value, the limit and the remedy. Fills head_dim if it is
// 0.
Result<ModelConfig> validated(ModelConfig config);

// "quickstart" (about 5 M parameters at vocabulary 4096), "bench" (the width-512 model of
// docs/performance.md), "tiny" (tests). `vocab` 0 keeps the preset's.
Result<ModelConfig> preset(std::string_view name, std::int64_t vocab = 0);

enum class Dtype { f32, f64 };
std::int64_t size_of(Dtype dtype);

enum class Init { normal, residual, ones };

// One row of the table: all tensors whose name fits `pattern` ("*" stands for the layer number).
struct ParamSpec {
  std::string_view pattern;
  std::int64_t (*rows)(const ModelConfig&);
  std::int64_t (*columns)(const ModelConfig&);  // nullptr: one-dimensional
  bool decay;                                   // AdamW weight decay: not on norms
  Init init;
  std::string_view tied_to = {};  // not stored when the configuration ties it
};
std::span<const ParamSpec> param_specs();

struct Param {
  std::string name;                 // model.layers.3.mlp.up_proj.weight
  std::vector<std::int64_t> shape;  // row-major
  std::int64_t offset = 0;          // first element in the flat buffer
  std::int64_t numel = 0;
  const ParamSpec* spec = nullptr;
};

// Stored parameters, counted without a table: for refusing a model before anything is allocated.
std::int64_t parameter_count(const ModelConfig& config);

class ParamTable {
 public:
  // `config` must have passed validated().
  explicit ParamTable(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  std::span<const Param> params() const { return params_; }
  const Param* find(std::string_view name) const;  // nullptr if there is none
  const Param& at(std::string_view name) const;    // asserts that it is there
  std::int64_t numel() const { return numel_; }    // of the parameters' flat buffer

  // Gradients are laid out like parameters. A tied weight has two: the embedding's at its place, the head's
  // in a tail behind all others, [numel(), gradient_numel()). Ranks reduce both; fold_tied adds them once, at
  // the end (so that micro-batches and ranks sum in the same order).
  std::int64_t gradient_numel() const { return numel_ + tail_; }

  // Parameters cut at multiples of kBlock elements from each parameter's own start, in order. Slices of any
  // sharding are cut only here, so the sums over blocks (global norm) do not depend on the layout.
  static constexpr std::int64_t kBlock = 4096;
  std::span<const Range> blocks() const { return blocks_; }

 private:
  ModelConfig config_;
  std::vector<Param> params_;
  std::vector<Range> blocks_;
  std::int64_t numel_ = 0;
  std::int64_t tail_ = 0;
};

// Initial values of parameter `param`, elements [begin, end) of it, in `out`. Keyed by (seed, name), counter
// = element index: every layout, thread count and machine starts identical. A normal value is a sum of eight
// uniform 16-bit integers (Irwin-Hall; beyond 4.9 standard deviations it has none), scaled in fp64.
template <typename T>
void init_param(const ModelConfig& config, const Param& param, std::uint64_t seed, std::int64_t begin,
                std::span<T> out);

}  // namespace muster::train
