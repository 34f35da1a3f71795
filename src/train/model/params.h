// The parameters of a Llama-class model as data: one table that initialisation, optimizer, checkpoints,
// import / export and sharding all read.
//
// Global tensors are Hugging Face's: names, shapes and order (q, k, v, gate, up apart; a tied head is not
// stored). A ParamTable lays them one after the other, without padding, in one flat buffer; so q|k|v and
// gate|up, which are neighbours there, are each one matrix to a GEMM. Fusion is placement only and never
// written to disk.
//
// A rank may hold a part of a model: the layers of a pipeline stage, and of each tensor its tensor-parallel
// cut (docs/adr/0035). Its table has the tensors of that part with their local shapes, and says of each which
// slice of the global tensor it is; the whole model is the part of a single rank.
//
// Everything here is a value and immutable after creation: any thread may read it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "train/layout/dtype.h"
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
  std::string rope_scaling = "default";  // default, linear or llama3: see rope_frequency()
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0;           // llama3, as the two that follow
  double rope_high_freq_factor = 4.0;          // above the low one
  std::int64_t rope_original_sequence = 8192;  // for which the unscaled frequencies were trained
  double norm_eps = 1e-5;
  bool tied = false;  // the head is the embedding
  std::int64_t max_sequence = 0;
  double init_std = 0.02;  // o_proj and down_proj: divided by sqrt(2 * layers)

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }

  bool operator==(const ModelConfig&) const = default;
};

// What the members of a ModelConfig may be: one table, for configurations too.
struct ModelLimit {
  std::string_view key;  // without "model."
  std::variant<std::int64_t ModelConfig::*, double ModelConfig::*> member;
  double minimum;
  double maximum;
  bool derived = false;  // a configuration may say 0, and leave it to the data or to other keys
};
std::span<const ModelLimit> model_limits();

// Checks every limit; the message names the key, its value, the limit and the remedy. Fills head_dim if it is
// 0.
Result<ModelConfig> validated(ModelConfig config);

// Sizes by name: "quickstart" (about 5 M parameters at vocabulary 4096), "bench" (the width-512 model of
// docs/performance.md), "tiny" (tests), and Llama shapes from "llama-5m" to "llama-70b". `vocab` 0 keeps the
// preset's.
Result<ModelConfig> preset(std::string_view name, std::int64_t vocab = 0);
std::vector<std::string> preset_names();

// Radians a position by which pair `pair` of a head's head_dim / 2 is turned: theta^(-2 pair / head_dim), and
//   linear  divided by factor;
//   llama3  pairs that turn at most low_freq_factor times within original_sequence: divided by factor; at
//           least high_freq_factor times: left as they are; between: interpolated by the number of turns
//           (the rule of Llama 3.1).
double rope_frequency(const ModelConfig& config, std::int64_t pair);

enum class Init { normal, residual, ones };

inline constexpr int kNotCut = -1;

// One row of the table: all tensors whose name fits `pattern` ("*" stands for the layer number).
struct ParamSpec {
  std::string_view pattern;
  std::int64_t (*rows)(const ModelConfig&);
  std::int64_t (*columns)(const ModelConfig&);  // nullptr: one-dimensional
  bool decay;                                   // AdamW weight decay: not on norms
  Init init;
  int tp_axis = kNotCut;          // the axis that tensor parallelism cuts
  std::string_view tied_to = {};  // not stored when the configuration ties it
};
std::span<const ParamSpec> param_specs();

struct Param {
  std::string name;                 // model.layers.3.mlp.up_proj.weight
  std::vector<std::int64_t> shape;  // row-major; of what is held here
  Box box;                          // where that lies in the global tensor
  bool copy = false;        // a tied embedding that this stage has as its head only: not counted, not saved
  std::int64_t offset = 0;  // first element in the flat buffer
  std::int64_t numel = 0;
  const ParamSpec* spec = nullptr;
};

// Stored parameters, counted without a table: for refusing a model before anything is allocated.
std::int64_t parameter_count(const ModelConfig& config);

// What one rank computes with.
struct ModelPart {
  Range layers;  // of the pipeline stage; the one with layer 0 has the embedding, the last the norm and head
  int tp_rank = 0;
  int tp = 1;
  bool operator==(const ModelPart&) const = default;
};
ModelPart whole_model(const ModelConfig& config);

// The part's flat layout, counted without a table: numel(), gradient_numel() and blocks() of it.
struct PartSize {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t blocks = 0;
};
PartSize part_size(const ModelConfig& config, const ModelPart& part);

// invalid_argument: tp does not divide the heads or the key / value heads, or exceeds the vocabulary or the
// inner width; the message names the degrees that would do. `config` must have passed validated().
Result<void> check_tensor_parallel(const ModelConfig& config, int tp);

// The sizes that a block of the part computes with: heads, inner width and vocabulary are the part's share.
ModelConfig local_config(const ModelConfig& config, const ModelPart& part);

class ParamTable {
 public:
  // `config` must have passed validated(), and the part's degree check_tensor_parallel().
  ParamTable(const ModelConfig& config, const ModelPart& part);
  explicit ParamTable(const ModelConfig& config) : ParamTable(config, whole_model(config)) {}

  const ModelConfig& config() const { return config_; }  // of the whole model
  const ModelConfig& local() const { return local_; }
  const ModelPart& part() const { return part_; }
  bool has_embedding() const { return part_.layers.begin == 0; }
  bool has_head() const { return part_.layers.end == config_.layers; }
  std::span<const Param> params() const { return params_; }
  const Param* find(std::string_view name) const;  // nullptr if there is none
  const Param& at(std::string_view name) const;    // asserts that it is there
  std::int64_t numel() const { return numel_; }    // of the parameters' flat buffer
  // Of the stages and tensor-parallel ranks that hold the same elements, whether this part is the one that
  // counts them in norms and writes them to checkpoints.
  bool owns(const Param& param) const {
    return !param.copy && (param.spec->tp_axis != kNotCut || part_.tp_rank == 0);
  }

  // Units: runs of the flat layout that are gathered and dropped together. The embedding; each layer; norm
  // and head; the copy of a tied embedding. Those that the part has, in order.
  std::span<const Range> units() const { return units_; }

  // Gradients are laid out like parameters. A tied weight has two: the embedding's at its place, the head's
  // in a tail behind all others, [numel(), gradient_numel()). Ranks reduce both; fold_tied adds them once, at
  // the end (so that micro-batches and ranks sum in the same order).
  std::int64_t gradient_numel() const { return numel_ + tail_; }

  // Parameters cut at multiples of kBlock elements from each parameter's own start, in order. Slices of any
  // sharding are cut only here, so the sums over blocks (global norm) do not depend on the layout.
  static constexpr std::int64_t kBlock = 4096;
  std::span<const Range> blocks() const { return blocks_; }
  // Those in `range`, whose ends are block ends, which is asserted; an empty range has none.
  std::span<const Range> blocks(Range range) const;
  // The parameter that an element of the parameters' flat buffer belongs to. Precondition: 0 <= element <
  // numel().
  const Param& param_at(std::int64_t element) const;

 private:
  void add(const ParamSpec& spec, std::string name);
  ModelConfig config_, local_;
  ModelPart part_;
  std::vector<Param> params_;
  std::vector<Range> units_;
  std::vector<Range> blocks_;
  std::int64_t numel_ = 0;
  std::int64_t tail_ = 0;
};

// Initial values of parameter `param`, elements [begin, begin + out.size()) of it, in `out`. Keyed by (seed,
// name), counter = index of the element in the global tensor: every layout, thread count and machine starts
// identical. A normal value is a sum of eight uniform 16-bit integers (Irwin-Hall; beyond 4.9 standard
// deviations it has none), scaled in fp64.
template <typename T>
void init_param(const ModelConfig& config, const Param& param, std::uint64_t seed, std::int64_t begin,
                std::span<T> out);

}  // namespace muster::train
