// The matrix products of the blocks.
//
// fp32 and fp64 go to ATen's GEMM as they are. Operands in bf16 are widened to fp32, which is exact; products
// and sums are then fp32, and a result in bf16 is rounded once: what a bf16 unit computes, and on a CPU
// without one several times as fast as ATen's bf16 GEMM (docs/adr/0046). Matrices are row-major or the
// transpose of one. One thread an object, under NoGradGuard.
#pragma once

#include "train/model/detail/buffer.h"
#include "train/tensor.h"

namespace muster::train::detail {

// A copy in the wide type, of a matrix in `room`; what is wide already, itself.
at::Tensor widened(const at::Tensor& tensor);
at::Tensor widened(const at::Tensor& matrix, Buffer& room);

class Products {
 public:
  // out = a b. Of the operands' type or of their wide one.
  void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
  // out = x + a b, rounded once.
  void multiply_onto(const at::Tensor& out, const at::Tensor& x, const at::Tensor& a, const at::Tensor& b);
  // sum = a b if `fresh`, else sum += a b, the product being rounded first: never through a GEMM with beta =
  // 1, which rounds differently. `sum` is of the wide type.
  void accumulate(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool fresh);

 private:
  Buffer left_, right_;  // widened operands
  Buffer product_;       // before it is rounded or added
};

}  // namespace muster::train::detail
