// What data-parallel ranks own of the training state, and the exchanges of a step that follow from it.
//
//   zero = 0   every rank owns everything. The gradient is summed on all of them.
//   zero = 1   each rank owns a range of the flat parameters (ZeRO-1: Rajbhandari et al., 2020). The gradient
//              is summed where it is owned, the owner updates, and the parameters are gathered again. The
//              same bytes on the wire as zero = 0, 1 / n of the optimizer's state.
//
// Ranges are cut at ParamTable::blocks(), so both give the same bits. Parameters are whole on every rank
// between steps. All ranks of the group make the same calls. One thread.
#pragma once

#include <vector>

#include "train/comm/comm.h"
#include "train/model/flat_buffer.h"
#include "train/model/params.h"

namespace muster::train {

// The flat parameters in `parts` ranges of about equal size, one behind the other. More parts than blocks:
// some are empty.
std::vector<Range> cut_at_blocks(const ParamTable& table, int parts);

class DataParallel {
 public:
  // `table` and `comm` must outlive this. Precondition: zero is 0 or 1.
  DataParallel(const ParamTable& table, int zero, Comm& comm);

  // What this rank updates.
  Range owned() const { return owned_; }
  // What this rank writes to a checkpoint: together the ranks write everything once.
  Range written() const { return cuts_[static_cast<std::size_t>(comm_.rank())]; }

  // Sums the gradients over the ranks, in rank order; valid in owned() afterwards. A tied head's is folded
  // in.
  Result<void> reduce(FlatBuffer& gradients);

  // The sum of squares of the reduced gradients, as far as this part of the model owns them: the same bits on
  // every rank and for every zero.
  Result<double> square_sum(const FlatBuffer& gradients);

  // After the update of owned(): the whole parameters everywhere.
  Result<void> gather(FlatBuffer& parameters);

 private:
  template <typename T>
  Result<void> reduce(FlatBuffer& gradients);

  const ParamTable& table_;
  Comm& comm_;
  const std::vector<Range> cuts_;  // of the parameters
  std::vector<Range> tail_cuts_;   // of a tied head's gradient: whoever owns the embedding's element has both
  bool sharded_ = false;
  Range owned_;
};

}  // namespace muster::train
