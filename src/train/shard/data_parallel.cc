#include "train/shard/data_parallel.h"

#include <algorithm>

#include "base/assert.h"
#include "train/model/model.h"
#include "train/optim/adamw.h"

namespace muster::train {

std::vector<Range> cut_at_blocks(const ParamTable& table, int parts) {
  MUSTER_ASSERT(parts >= 1);
  const auto blocks = table.blocks();
  std::vector<Range> cuts;
  std::int64_t begin = 0;
  for (int part = 0; part < parts; ++part) {
    // The first block that does not begin before the even cut.
    const std::int64_t even = part_of(table.numel(), part, parts).end;
    const auto next = std::ranges::lower_bound(blocks, even, {}, &Range::begin);
    const std::int64_t end = next == blocks.end() ? table.numel() : next->begin;
    cuts.push_back({begin, end});
    begin = end;
  }
  return cuts;
}

DataParallel::DataParallel(const ParamTable& table, int zero, Comm& comm)
    : table_(table),
      comm_(comm),
      cuts_(cut_at_blocks(table, comm.size())),
      sharded_(zero == 1 && comm.size() > 1),
      owned_(sharded_ ? written() : Range{0, table.numel()}) {
  MUSTER_ASSERT(zero == 0 || zero == 1);
  if (table.gradient_numel() == table.numel()) return;
  const std::int64_t numel = table.params().front().numel;  // the embedding stands first
  for (const Range& cut : cuts_) tail_cuts_.push_back({std::min(cut.begin, numel), std::min(cut.end, numel)});
}

template <typename T>
Result<void> DataParallel::reduce(FlatBuffer& gradients) {
  if (!sharded_) return comm_.all_reduce<T>(gradients.as<T>());
  MUSTER_CHECK(comm_.reduce_scatter<T>(gradients.as<T>({0, table_.numel()}), cuts_));
  if (tail_cuts_.empty()) return {};
  return comm_.reduce_scatter<T>(gradients.as<T>({table_.numel(), table_.gradient_numel()}), tail_cuts_);
}

Result<void> DataParallel::reduce(FlatBuffer& gradients) {
  MUSTER_CHECK(gradients.dtype() == Dtype::f32 ? reduce<float>(gradients) : reduce<double>(gradients));
  fold_tied_gradient(table_, gradients, owned_);
  return {};
}

Result<double> DataParallel::square_sum(const FlatBuffer& gradients) {
  const auto mine = block_squares(table_, gradients, owned_);
  if (!sharded_) return ordered_sum(mine);
  const auto blocks = table_.blocks();
  std::vector<double> all(blocks.size());
  std::vector<Range> parts;
  for (const Range& cut : cuts_) {
    const auto number = [&](std::int64_t at) {
      return std::ranges::lower_bound(blocks, at, {}, &Range::begin) - blocks.begin();
    };
    parts.push_back({number(cut.begin), number(cut.end)});
  }
  std::ranges::copy(mine, all.begin() + parts[static_cast<std::size_t>(comm_.rank())].begin);
  MUSTER_CHECK(comm_.all_gather<double>(all, parts));
  return ordered_sum(all);
}

Result<void> DataParallel::gather(FlatBuffer& parameters) {
  if (!sharded_) return {};
  return parameters.dtype() == Dtype::f32 ? comm_.all_gather<float>(parameters.as<float>(), cuts_)
                                          : comm_.all_gather<double>(parameters.as<double>(), cuts_);
}

}  // namespace muster::train
