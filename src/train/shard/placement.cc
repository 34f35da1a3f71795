#include "train/shard/placement.h"

#include <algorithm>

#include "base/assert.h"

namespace muster::train {
namespace {

// Pieces that touch become one.
void append(std::vector<Range>& pieces, Range range) {
  if (range.size() == 0) return;
  if (!pieces.empty() && pieces.back().end == range.begin) {
    pieces.back().end = range.end;
  } else {
    pieces.push_back(range);
  }
}

Range shifted(Range range, std::int64_t by) { return {range.begin + by, range.end + by}; }

SharedRun run_of(const ParamTable& table, Range range, int parts) {
  SharedRun run{.range = range, .parts = cut_at_blocks(table, range, parts)};
  for (Range& part : run.parts) part = shifted(part, -range.begin);
  return run;
}

}  // namespace

std::vector<Range> cut_at_blocks(const ParamTable& table, Range range, int parts) {
  MUSTER_ASSERT(parts >= 1);
  const auto blocks = table.blocks();
  std::vector<Range> cuts;
  std::int64_t begin = range.begin;
  for (int part = 0; part < parts; ++part) {
    // The first block that does not begin before the even cut.
    const std::int64_t even = range.begin + part_of(range.size(), part, parts).end;
    const auto next = std::ranges::lower_bound(blocks, even, {}, &Range::begin);
    const std::int64_t end = std::min(range.end, next == blocks.end() ? table.numel() : next->begin);
    cuts.push_back({begin, end});
    begin = end;
  }
  return cuts;
}

bool same_norm_pieces(const ModelConfig& config, Range layers, int tp, int shards) {
  if (tp == 1 || shards == 1 || (config.ffn % tp == 0 && config.vocab % tp == 0)) return true;
  const auto pieces = [&](int tp_rank) {
    const ParamTable table(config, {.layers = layers, .tp_rank = tp_rank, .tp = tp});
    std::vector<std::vector<Range>> held;  // of each shard and norm, in its own coordinates
    for (int shard = 0; shard < shards; ++shard) {
      const Placement placement(table, {.shards = shards, .shard = shard});
      for (const Param& param : table.params()) {
        if (param.spec->tp_axis != kNotCut) continue;
        held.push_back(within(placement.held(), {param.offset, param.offset + param.numel}));
        for (Range& piece : held.back()) piece = shifted(piece, -param.offset);
      }
    }
    return held;
  };
  const auto first = pieces(0);
  for (int rank = 1; rank < tp; ++rank) {
    if (pieces(rank) != first) return false;
  }
  return true;
}

Placement::Placement(const ParamTable& table, const ShardPlace& place) : table_(&table), place_(place) {
  const bool tail = table.gradient_numel() > table.numel();
  std::vector<Range> units(table.units().begin(), table.units().end());
  if (tail) units.push_back({table.numel(), table.gradient_numel()});
  for (const Range& whole : units) {
    const bool of_tail = whole.begin >= table.numel();
    const std::int64_t shift = of_tail ? table.numel() : 0;
    const Range mine = unit(whole).part(place.shard);
    SharedRun run = run_of(table, shifted(mine, -shift), place.replicas);
    run.range = mine;
    const Range part = run.part(place.replica), updated = place.zero ? part : mine;
    append(gradients_, mine);
    replicated_.push_back(std::move(run));
    if (of_tail) continue;
    ++parameter_runs_;
    append(held_, mine);
    const auto param = std::ranges::find(table.params(), whole.begin, &Param::offset);
    const bool copy = param->copy;
    if (!copy) append(owned_, updated);
    if (!copy) append(written_, part);
    if (copy || (table.has_embedding() && whole.begin == 0)) append(tied_, updated);
  }
}

SharedRun Placement::unit(Range unit) const {
  const bool of_tail = unit.begin >= table_->numel();
  SharedRun run = run_of(*table_, of_tail ? shifted(unit, -table_->numel()) : unit, place_.shards);
  run.range = unit;
  return run;
}

}  // namespace muster::train
