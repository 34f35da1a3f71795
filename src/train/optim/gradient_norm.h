// The global norm of the gradients, and clipping by it (Pascanu et al.: On the difficulty of training
// recurrent neural networks, 2013).
//
// The norm is a sum over blocks of squares, so that it has the same bits under every layout and thread count:
// each block is summed whole, on one thread and in one order, by who holds it, and the blocks are added in
// the table's order. Functions without state, on the caller's at::parallel_for threads; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/model/flat_buffer.h"
#include "train/model/params.h"

namespace muster::train {

// Sums of squares, one fp64 value for each of table.blocks(), in order; 0 for those outside `pieces` (which
// are cut at blocks) and of a parameter that another part counts (ParamTable::owns). Ranks add up these, 0
// and one value each, without rounding; the norm is sqrt(ordered_sum(all blocks)).
std::vector<double> block_squares(const ParamTable& table, const FlatBuffer& gradients,
                                  std::span<const Range> pieces);
double ordered_sum(std::span<const double> values);

// The norm of the whole buffer, all on this rank.
double global_norm(const ParamTable& table, const FlatBuffer& gradients);

// What gradients are multiplied with: 1 / tokens, less if the norm of the mean gradient exceeds norm_max (0:
// never). norm_of_sum: of the summed gradients, before the division.
double gradient_scale(double norm_of_sum, std::int64_t tokens, double norm_max);

}  // namespace muster::train
