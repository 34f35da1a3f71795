// The memory of one rank, by arithmetic.
//
// Counted is what muster-train itself makes: weights, gradients, optimizer state, activations, work space,
// what messages need, the buffer of the save in the background; not the program and its libraries. Pure; any
// thread.
#pragma once

namespace muster::train {

struct Stage;

// Bytes on one rank.
struct MemoryPlan {
  double parameters = 0;   // held, and the units at work if they are sharded
  double gradients = 0;    // likewise
  double optimizer = 0;    // moments, and master weights
  double activations = 0;  // of all micro-batches in flight
  double work = 0;         // of one block at a time, the logits, the tokens of the step
  double messages = 0;     // room for the largest sum over ranks
  double save = 0;         // the copy that is written in the background
  double total() const { return parameters + gradients + optimizer + activations + work + messages + save; }
};

// Of the rank of the stage that needs most.
MemoryPlan memory_plan(const Stage& stage);

}  // namespace muster::train
