// AdamW (Loshchilov, Hutter: Decoupled weight decay regularization, 2019; PyTorch's arithmetic) on flat
// buffers and on any pieces of them.
//
// An AdamW owns the two moments of its pieces, and where the parameters are bf16, an fp32 copy of them, the
// master weights (Micikevicius et al.: Mixed precision training, 2018): an update is often too small for a
// bf16 to show it. It computes on the caller's at::parallel_for threads; no bit depends on their number or on
// how the pieces are cut, as long as they are cut at ParamTable::blocks(), which is asserted. One thread an
// object.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/model/flat_buffer.h"
#include "train/model/params.h"

namespace muster::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // only parameters whose spec says so (none on norms)
};

class AdamW {
 public:
  // State for these pieces of the flat parameters, which are of `dtype`. `table` must outlive this.
  AdamW(const ParamTable& table, Dtype dtype, const AdamWOptions& options, std::vector<Range> pieces);
  AdamW(const ParamTable& table, Dtype dtype, const AdamWOptions& options)
      : AdamW(table, dtype, options, {{0, table.numel()}}) {}

  // One update; `gradients`, of the wide type, are multiplied by `gradient_scale` on the way: 1 / tokens and
  // clipping. Both buffers hold the pieces; their other elements stay as they are.
  void step(FlatBuffer& parameters, const FlatBuffer& gradients, double learning_rate, double gradient_scale);

  // The weights that are updated: the master weights, or `parameters` themselves. Part of the durable state.
  FlatBuffer& weights(FlatBuffer& parameters) { return master_ ? *master_ : parameters; }
  const FlatBuffer& weights(const FlatBuffer& parameters) const { return master_ ? *master_ : parameters; }
  bool has_master() const { return master_.has_value(); }
  // Rounds the master weights, where there are any, into the pieces of `parameters`.
  void round_into(FlatBuffer& parameters) const;

  // Part of the durable state, too: steps done, first and second moments of the pieces.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  std::span<const Range> pieces() const { return first_.pieces(); }
  FlatBuffer& first_moment() { return first_; }
  FlatBuffer& second_moment() { return second_; }
  const FlatBuffer& first_moment() const { return first_; }
  const FlatBuffer& second_moment() const { return second_; }

 private:
  template <typename T>
  void update(FlatBuffer& weights, const FlatBuffer& gradients, double learning_rate, double gradient_scale);

  const ParamTable* table_;
  AdamWOptions options_;
  FlatBuffer first_, second_;
  std::optional<FlatBuffer> master_;
  std::int64_t steps_ = 0;
};

}  // namespace muster::train
