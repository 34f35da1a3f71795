// What a rank holds of a model's parameters and gradients, and how the blocks get at them.
//
// Blocks work on whole units of the table (ParamTable::units): a unit is acquired before its forward or
// backward and released after it. This class holds every element of its part, so a unit is simply where it
// lies. ShardedWeights (train/shard) holds a piece of each, gathers a unit when it is acquired and reduces
// its gradient when that is complete.
//
// Gradients are of the *sum* of token losses, laid out as ParamTable says, of the wide type, and add up over
// the micro-batches of a step. An error of a group is kept, as by the seam (detail/seam.h): from then on
// nothing is sent, numbers are of no use, and status() says why. One thread.
#pragma once

#include <cstddef>
#include <vector>

#include "base/error.h"
#include "train/model/flat_buffer.h"
#include "train/model/params.h"

namespace muster::train {

class Weights {
 public:
  Weights(ParamTable table, Dtype dtype);
  virtual ~Weights() = default;
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  const ParamTable& table() const { return table_; }
  Dtype dtype() const { return parameters_.dtype(); }
  FlatBuffer& parameters() { return parameters_; }
  FlatBuffer& gradients() { return gradients_; }

  bool whole() const { return parameters_.numel() == table_.numel(); }

  // From here the gradients count as zero; the first micro-batch overwrites them.
  void start_accumulation() { fresh_ = true; }
  void end_micro_batch() { fresh_ = false; }

  // The first element of a unit, whole, until it is released. A unit is acquired once at a time.
  virtual std::byte* acquire(Range unit);
  virtual void release(Range /*unit*/) {}

  // Where the backward writes the gradient of a unit (or of a tied head: the tail): it overwrites what is
  // there if `fresh`, else adds. reduce(): the unit's gradient of this micro-batch is complete.
  struct Gradient {
    std::byte* data;
    bool fresh;
  };
  virtual Gradient gradient(Range unit);
  virtual void reduce(Range /*unit*/) {}

  virtual Result<void> status() const { return {}; }

 protected:
  // Holds these pieces of the layout only.
  Weights(ParamTable table, Dtype dtype, std::vector<Range> parameters, std::vector<Range> gradients);
  bool fresh() const { return fresh_; }

 private:
  const ParamTable table_;
  FlatBuffer parameters_, gradients_;
  bool fresh_ = true;
};

}  // namespace muster::train
