// What a Model is made of: weights, the blocks as views of their units, what the micro-batches in flight
// keep, work space. For model.cc, generation and tests. One thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "train/model/detail/blocks.h"
#include "train/model/model.h"

namespace muster::train {

struct Model::Detail {
  Detail(std::unique_ptr<Weights> weights, const ModelOptions& options);
  Detail(const Detail&) = delete;
  Detail& operator=(const Detail&) = delete;

  std::unique_ptr<Weights> weights;
  ModelOptions options;
  detail::Rotary rotary;
  detail::Embedding embedding;  // of the first stage
  struct Layer {
    detail::Attention attention;
    detail::Mlp mlp;
  };
  std::vector<Layer> layers;
  detail::Head head;  // of the last stage
  detail::Head::Saved head_saved;
  detail::Context context;

  // A unit of the weights and the block weights that are views of it.
  struct View {
    detail::Weight* weight;
    std::int64_t offset;  // in the unit, elements
    std::vector<std::int64_t> shape;
  };
  struct Unit {
    Range parameters, gradients;
    std::vector<View> views;
  };
  std::vector<Unit> layer_units;
  std::optional<Unit> embedding_unit, norm_unit;
  std::optional<Unit> tied_unit;  // a tied head: the embedding's values, a gradient of its own

  // The unit is there, and the views point at it, as long as this lives.
  class Lease;

  struct LayerSaved {
    detail::Attention::Saved attention;
    detail::Buffer middle;  // the stream between attention and MLP
    detail::Mlp::Saved mlp;
  };
  struct Slot {
    detail::Buffer input, gradient;
    std::vector<detail::Buffer> outputs;  // of each layer
    std::vector<LayerSaved> saved;        // of each layer, unless keeps_inputs_only()
    std::vector<at::Tensor> streams;      // into each layer, and behind the last
    detail::Documents documents;
  };
  std::vector<Slot> slots;
  LayerSaved recomputed;  // of the layer whose forward is run again

  bool watching = false;
  NotFinite found;

  // Full activation checkpointing: of each layer only its input stands until the backward.
  bool keeps_inputs_only() const { return options.activation_checkpointing == ActivationCheckpointing::full; }
  Slot& slot(int number);
  at::Tensor stream(detail::Buffer& buffer, detail::Shape shape) const;  // [this rank's rows, width]
  // The stream behind the last layer.
  at::Tensor forward(Slot& slot, const std::int64_t* tokens, detail::Shape shape);
  void backward(Slot& slot, const std::int64_t* tokens, const at::Tensor& d, detail::Shape shape);
  at::Tensor logits(const at::Tensor& x);
  // The sum of the token losses; d: the gradient of the stream, or null.
  double loss(Slot& slot, const std::int64_t* targets, at::Tensor* d, detail::Shape shape);
  void run_layer(std::size_t layer, const at::Tensor& x, at::Tensor* y, LayerSaved& saved,
                 detail::Shape shape);
  Result<void> status() const;

 private:
  Unit unit_of(Range parameters, Range gradients,
               const std::vector<std::pair<detail::Weight*, std::vector<std::string>>>& weights) const;
  void look_at(const at::Tensor& stream, std::int64_t layer);
  void look_at(const Unit& unit, std::byte* gradient);
};

}  // namespace muster::train
