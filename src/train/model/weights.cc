#include "train/model/weights.h"

namespace muster::train {

Weights::Weights(ParamTable table, Dtype dtype)
    : table_(std::move(table)),
      parameters_(table_.numel(), dtype),
      gradients_(table_.gradient_numel(), wide(dtype)) {}

Weights::Weights(ParamTable table, Dtype dtype, std::vector<Range> parameters, std::vector<Range> gradients)
    : table_(std::move(table)),
      parameters_(std::move(parameters), dtype),
      gradients_(std::move(gradients), wide(dtype)) {}

std::byte* Weights::acquire(Range unit) { return parameters_.bytes(unit).data(); }

Weights::Gradient Weights::gradient(Range unit) { return {gradients_.bytes(unit).data(), fresh_}; }

}  // namespace muster::train
