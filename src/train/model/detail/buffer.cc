#include "train/model/detail/buffer.h"

namespace muster::train::detail {

at::Tensor Buffer::shaped(at::ScalarType type, at::IntArrayRef shape) {
  std::int64_t numel = 1;
  for (const auto length : shape) numel *= length;
  if (!storage_.defined() || storage_.scalar_type() != type || storage_.numel() < numel) {
    storage_ = at::Tensor();  // free first
    storage_ = at::empty({numel}, type);
  }
  return storage_.narrow(0, 0, numel).view(shape);
}

}  // namespace muster::train::detail
