// What a Model is made of: flat buffers, the blocks as views of them, work space. For model.cc, generation
// and tests. One thread at a time.
#pragma once

#include <vector>

#include "train/model/detail/blocks.h"
#include "train/model/model.h"

namespace muster::train {

struct Model::Detail {
  Detail(const ModelConfig& config, Dtype type, const TensorParallel& tensor_parallel);
  Detail(const Detail&) = delete;
  Detail& operator=(const Detail&) = delete;

  ParamTable table;
  Dtype dtype;
  FlatBuffer parameters;
  FlatBuffer gradients;
  bool fresh = true;  // the next backward overwrites

  detail::Rotary rotary;
  detail::Embedding embedding;
  struct Layer {
    detail::Attention attention;
    detail::Mlp mlp;
    detail::Attention::Saved attention_saved;
    detail::Mlp::Saved mlp_saved;
  };
  std::vector<Layer> layers;
  detail::Head head;
  detail::Head::Saved head_saved;
  detail::Buffer embedded, stream;
  detail::Context context;

  // The residual stream behind the last layer; this rank's rows of it.
  at::Tensor forward(const std::int64_t* tokens, detail::Shape shape);
};

}  // namespace muster::train
