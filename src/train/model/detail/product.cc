#include "train/model/detail/product.h"

#include "base/assert.h"
#include "train/model/detail/types.h"

namespace muster::train::detail {
at::Tensor widened(const at::Tensor& tensor) { return tensor.to(wide(tensor.scalar_type())); }

at::Tensor widened(const at::Tensor& matrix, Buffer& room) {
  if (wide(matrix.scalar_type()) == matrix.scalar_type()) return matrix;
  if (matrix.is_contiguous()) return room.shaped(at::kFloat, matrix.sizes()).copy_(matrix);
  MUSTER_ASSERT(matrix.t().is_contiguous());
  return widened(matrix.t(), room).t();
}

void Products::multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = widened(a, left_), right = widened(b, right_);
  const bool rounds = out.scalar_type() != left.scalar_type();
  at::Tensor product = rounds ? product_.shaped(left.scalar_type(), out.sizes()) : out;
  at::mm_out(product, left, right);
  if (rounds) out.copy_(product);
}

void Products::multiply_onto(const at::Tensor& out, const at::Tensor& x, const at::Tensor& a,
                             const at::Tensor& b) {
  const at::Tensor left = widened(a, left_), right = widened(b, right_);
  if (out.scalar_type() == left.scalar_type()) {
    at::Tensor target = out;
    at::addmm_out(target, x, left, right);
    return;
  }
  at::Tensor product = product_.shaped(left.scalar_type(), out.sizes());
  at::mm_out(product, left, right);
  out.copy_(product.add_(x));
}

void Products::accumulate(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool fresh) {
  if (fresh) {
    multiply(sum, a, b);
    return;
  }
  const at::Tensor product = product_.shaped(sum.scalar_type(), sum.sizes());
  multiply(product, a, b);
  sum.add_(product);
}

}  // namespace muster::train::detail
