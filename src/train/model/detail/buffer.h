// Work space of the model. One thread a Buffer.
#pragma once

#include "train/tensor.h"

namespace muster::train::detail {

// Memory that grows to the largest shape asked for and is then reused: no page faults in the steady state.
class Buffer {
 public:
  // A view of the memory, in row-major order; what is in it is of no use. It shares the memory with all views
  // before it, until one is larger.
  at::Tensor shaped(at::ScalarType type, at::IntArrayRef shape);

 private:
  at::Tensor storage_;
};

}  // namespace muster::train::detail
