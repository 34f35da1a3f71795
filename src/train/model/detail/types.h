// Between the element types of tensors and those of the kernels. Functions without state; any thread.
#pragma once

#include "train/layout/dtype.h"
#include "train/tensor.h"

namespace muster::train::detail {

inline at::ScalarType scalar_type(Dtype dtype) {
  return dtype == Dtype::f32 ? at::kFloat : dtype == Dtype::f64 ? at::kDouble : at::kBFloat16;
}
inline at::ScalarType wide(at::ScalarType type) { return type == at::kBFloat16 ? at::kFloat : type; }

// Calls f with a null pointer of the tensor's element type: float, double or BFloat16.
template <typename F>
void with_type(const at::Tensor& like, F f) {
  if (like.scalar_type() == at::kFloat) {
    f(static_cast<float*>(nullptr));
  } else if (like.scalar_type() == at::kDouble) {
    f(static_cast<double*>(nullptr));
  } else {
    f(static_cast<BFloat16*>(nullptr));
  }
}

// The same where there is no bf16.
template <typename F>
void with_wide_type(const at::Tensor& like, F f) {
  if (like.scalar_type() == at::kFloat) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<double*>(nullptr));
  }
}

// The elements, of the type that with_type() gave or its wide one: asserts that it is the tensor's.
template <typename T>
T* data(const at::Tensor& tensor, T* /*type*/) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return reinterpret_cast<BFloat16*>(tensor.mutable_data_ptr<at::BFloat16>());
  } else {
    return tensor.mutable_data_ptr<T>();
  }
}
template <typename T>
Wide<T>* wide_data(const at::Tensor& tensor, T* /*type*/) {
  return tensor.mutable_data_ptr<Wide<T>>();
}

}  // namespace muster::train::detail
