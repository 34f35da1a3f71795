#include "train/shard/sharded_weights.h"

#include <algorithm>

#include "base/assert.h"

namespace muster::train {

ShardedWeights::ShardedWeights(ParamTable table, Dtype dtype, const ShardPlace& place,
                               const GatherGroups& groups)
    : ShardedWeights(table, dtype, place, groups, Placement(table, place)) {}

ShardedWeights::ShardedWeights(ParamTable own, Dtype dtype, const ShardPlace& place,
                               const GatherGroups& groups, const Placement& placement)
    : Weights(std::move(own), dtype, placement.held(), placement.gradients()),
      placement_(table(), place),
      groups_(groups),
      shard_(place.shard) {
  MUSTER_ASSERT(groups.all->rank() == place.shard && groups.all->size() == place.shards);
}

// The smallest free room of the type that is large enough; else the largest free one, made larger.
ShardedWeights::Room& ShardedWeights::take(Range unit, bool of_gradient) {
  const Dtype type = of_gradient ? wide(dtype()) : dtype();
  const auto fits = [&](const Room& room) { return room.buffer.numel() >= unit.size(); };
  Room* best = nullptr;
  for (Room& room : rooms_) {
    if (room.unit.begin >= 0 || room.buffer.dtype() != type) continue;
    const bool better = best == nullptr || (fits(room) && !fits(*best)) ||
                        (fits(room) ? room.buffer.numel() < best->buffer.numel()
                                    : !fits(*best) && room.buffer.numel() > best->buffer.numel());
    if (better) best = &room;
  }
  if (best == nullptr) best = &rooms_.emplace_back();
  if (!fits(*best)) {
    best->buffer = FlatBuffer();  // free first
    best->buffer = FlatBuffer(unit.size(), type);
  }
  best->unit = unit;
  best->of_gradient = of_gradient;
  return *best;
}

ShardedWeights::Room& ShardedWeights::find(Range unit, bool of_gradient) {
  const auto found = std::ranges::find_if(
      rooms_, [&](const Room& room) { return room.unit == unit && room.of_gradient == of_gradient; });
  MUSTER_ASSERT(found != rooms_.end());
  return *found;
}

std::byte* ShardedWeights::acquire(Range unit) {
  Room& room = take(unit, false);
  const auto whole = room.buffer.bytes(Range{0, unit.size()});
  if (!status_) return whole.data();
  const SharedRun run = placement_.unit(unit);
  const auto width = static_cast<std::size_t>(size_of(dtype()));
  const Range mine = run.part(shard_);
  const auto held = parameters().bytes(mine);
  std::ranges::copy(held, whole.begin() + (mine.begin - unit.begin) * static_cast<std::int64_t>(width));
  status_ = gather(groups_, whole, run.parts, width);
  return whole.data();
}

void ShardedWeights::release(Range unit) { find(unit, false).unit = {-1, -1}; }

Weights::Gradient ShardedWeights::gradient(Range unit) { return {take(unit, true).buffer.data(), true}; }

template <typename T>
void ShardedWeights::reduce(Range unit, Room& room) {
  const SharedRun run = placement_.unit(unit);
  const auto whole = room.buffer.as<T>(Range{0, unit.size()});
  status_ = groups_.all->reduce_scatter<T>(whole, run.parts);
  const Range mine = run.part(shard_);
  const auto summed = room.buffer.as<T>(run.parts[static_cast<std::size_t>(shard_)]);
  const auto held = gradients().as<T>(mine);
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = fresh() ? summed[i] : held[i] + summed[i];
}

void ShardedWeights::reduce(Range unit) {
  Room& room = find(unit, true);
  if (status_) dtype() == Dtype::f64 ? reduce<double>(unit, room) : reduce<float>(unit, room);
  room.unit = {-1, -1};
}

}  // namespace muster::train
