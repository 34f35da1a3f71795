#include "train/shard/gather.h"

#include "base/assert.h"

namespace muster::train {

Result<void> gather(const GatherGroups& groups, std::span<std::byte> unit, std::span<const Range> parts,
                    std::size_t width) {
  if (!groups.two_levels()) return groups.all->all_gather(unit, parts, width);
  const int nodes = groups.across->size(), local = groups.within->size();
  MUSTER_ASSERT(nodes * local == groups.all->size());
  const auto part = [&](int node, int place) {
    const Range& range = parts[static_cast<std::size_t>(node * local + place)];
    return unit.subspan(static_cast<std::size_t>(range.begin) * width,
                        static_cast<std::size_t>(range.size()) * width);
  };
  const int node = groups.across->rank(), place = groups.within->rank();
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int other = 0; other < nodes; ++other) {
    if (other == node) continue;
    sends.push_back({.to = other, .data = part(node, place)});
    receives.push_back({.from = other, .data = part(other, place)});
  }
  MUSTER_CHECK(groups.across->exchange(sends, receives));
  sends.clear();
  receives.clear();
  for (int other = 0; other < local; ++other) {
    if (other == place) continue;
    for (int of = 0; of < nodes; ++of) {
      sends.push_back({.to = other, .data = part(of, place)});
      receives.push_back({.from = other, .data = part(of, other)});
    }
  }
  return groups.within->exchange(sends, receives);
}

}  // namespace muster::train
