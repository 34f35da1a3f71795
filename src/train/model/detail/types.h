// Dispatch on the element type of a tensor: fp32 or fp64.
#pragma once

#include "train/tensor.h"

namespace muster::train::detail {

// Calls f with a null pointer of the tensor's element type.
template <typename F>
void with_type(const at::Tensor& like, F f) {
  if (like.scalar_type() == at::kFloat) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<double*>(nullptr));
  }
}

template <typename T>
T* data(const at::Tensor& tensor, T* /*type*/) {
  return tensor.mutable_data_ptr<T>();
}

}  // namespace muster::train::detail
