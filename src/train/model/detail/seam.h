// Where tensor parallelism touches a block: between the residual stream and the weights that are cut.
//
//                            enter()           the block works on   leave()
//   one rank                 itself            [T, W]               itself
//   tensor parallel          itself            [T, W], partial      the sum over ranks
//   and sequence parallel    gathered rows     [T, W], partial      this rank's rows of the sum
//
// The stream has T rows of width W, one a token; under sequence parallelism a rank has only rows() of them,
// as even as T divides (Korthikanti et al., Reducing Activation Recomputation, 2022). Forward enters with the
// normed stream and leaves with the block's output; backward enters with dy and leaves with dx.
//
// An error of the group is kept: from then on calls send nothing, numbers are of no use, and status() says
// why. Whoever runs the blocks asks once at the end. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/comm/comm.h"
#include "train/layout/layout.h"
#include "train/model/detail/buffer.h"
#include "train/tensor.h"

namespace muster::train::detail {

class Seam {
 public:
  Seam() = default;
  // `group` must outlive this; null: one rank.
  Seam(Comm* group, bool sequence_parallel);

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int size() const { return group_ == nullptr ? 1 : group_->size(); }
  bool alone() const { return size() == 1; }
  bool cuts_rows() const { return sequence_parallel_; }

  // The rows of a stream of `tokens` that this rank has.
  Range rows(std::int64_t tokens) const;

  // All `tokens` rows of a stream of which this rank has `mine`; in `room` if they must be gathered.
  at::Tensor enter(const at::Tensor& mine, std::int64_t tokens, Buffer& room);
  // The sum over ranks of `partial` [T, W], of this rank's rows: a view of it.
  at::Tensor leave(const at::Tensor& partial);
  // Every rank's values one after the other; `mine` has the same length on all.
  void gather(std::span<const double> mine, std::vector<double>& all);
  // The sum over ranks, in place.
  void sum(const at::Tensor& values);

  const Result<void>& status() const { return status_; }

 private:
  std::vector<Range> parts(std::int64_t rows, std::int64_t width) const;

  Comm* group_ = nullptr;
  bool sequence_parallel_ = false;
  Result<void> status_;
};

}  // namespace muster::train::detail
