// Work space of the model.
#pragma once

#include "train/tensor.h"

namespace muster::train::detail {

// Memory that grows to the largest shape asked for and is then reused: no page faults in the steady state.
class Buffer {
 public:
  at::Tensor shaped(at::ScalarType type, at::IntArrayRef shape);

 private:
  at::Tensor storage_;
};

}  // namespace muster::train::detail
