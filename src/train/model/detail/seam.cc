#include "train/model/detail/seam.h"

#include "base/assert.h"
#include "train/model/detail/types.h"

namespace muster::train::detail {
namespace {

template <typename T>
std::span<T> elements(const at::Tensor& tensor, T* type) {
  return {data(tensor, type), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

Seam::Seam(Comm* group, bool sequence_parallel)
    : group_(group), sequence_parallel_(sequence_parallel && group != nullptr && group->size() > 1) {}

Range Seam::rows(std::int64_t tokens) const {
  return sequence_parallel_ ? part_of(tokens, rank(), size()) : Range{0, tokens};
}

std::vector<Range> Seam::parts(std::int64_t rows, std::int64_t width) const {
  std::vector<Range> parts;
  for (int r = 0; r < size(); ++r) {
    const Range part = part_of(rows, r, size());
    parts.push_back({part.begin * width, part.end * width});
  }
  return parts;
}

at::Tensor Seam::enter(const at::Tensor& mine, std::int64_t tokens, Buffer& room) {
  if (!sequence_parallel_) return mine;
  at::Tensor all = room.shaped(mine.scalar_type(), {tokens, mine.size(1)});
  const Range own = rows(tokens);
  all.narrow(0, own.begin, own.size()).copy_(mine);
  if (!status_) return all;
  with_type(all, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    status_ = group_->all_gather<T>(elements(all, type), parts(tokens, mine.size(1)));
  });
  return all;
}

at::Tensor Seam::leave(const at::Tensor& partial) {
  if (alone()) return partial;
  if (!sequence_parallel_) {
    sum(partial);
    return partial;
  }
  const std::int64_t tokens = partial.size(0);
  const Range own = rows(tokens);
  if (status_) {
    with_type(partial, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      status_ = group_->reduce_scatter<T>(elements(partial, type), parts(tokens, partial.size(1)));
    });
  }
  return partial.narrow(0, own.begin, own.size());
}

void Seam::sum(const at::Tensor& values) {
  if (alone() || !status_) return;
  MUSTER_ASSERT(values.is_contiguous());
  with_type(values, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    status_ = group_->all_reduce<T>(elements(values, type));
  });
}

void Seam::gather(std::span<const double> mine, std::vector<double>& all) {
  all.resize(mine.size() * static_cast<std::size_t>(size()));
  if (alone()) {
    std::copy(mine.begin(), mine.end(), all.begin());
  } else if (status_) {
    status_ = group_->all_gather<double>(mine, all);
  }
}

}  // namespace muster::train::detail
