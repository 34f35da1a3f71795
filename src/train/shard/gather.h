// All-gather of one unit over a shard group that spans nodes, flat or in two levels (MiCS: Zhang et al.,
// 2022): first each rank from those of its place on the other nodes, then the ranks of a node from each
// other. Of M bytes over p ranks, k on a node, (p - k) M / p cross into a node with two levels, as each rank
// brings in another part; flat they are k times that. Both only copy: the same bits.
#pragma once

#include <span>

#include "train/comm/comm.h"

namespace muster::train {

// Rank r of `all` is rank r % within->size() of `within` and rank r / within->size() of `across`. Without
// these two the gather is flat. All must outlive this.
struct GatherGroups {
  Comm* all = nullptr;
  Comm* across = nullptr;
  Comm* within = nullptr;
  bool two_levels() const { return across != nullptr; }
};

// `unit`: in elements of `width` bytes; parts[r] of it is there on rank r, and afterwards everything
// everywhere. `parts` as for Comm::all_gather.
Result<void> gather(const GatherGroups& groups, std::span<std::byte> unit, std::span<const Range> parts,
                    std::size_t width);

}  // namespace muster::train
