// One stage of a pipeline in numbers, from which memory and traffic are counted: of the tensor-parallel rank
// that has most of it. Internal to plan. Pure; any thread.
#pragma once

#include <cstdint>

#include "train/config/config.h"
#include "train/plan/run_layout.h"

namespace muster::train {

// Bytes of an element.
struct ElementBytes {
  double narrow = 0;  // parameters and activations
  double wide = 0;    // gradients, optimizer state, statistics and logits
  bool mixed() const { return narrow != wide; }
};

struct Stage {
  // Stage `number`, from 0, of run.stages. `settings` and `run` must outlive this.
  Stage(const Config& settings, const RunLayout& run, int number);

  const Config& config;
  const RunLayout& layout;
  int index;
  bool first, last;
  int pp, replicas, shards, tp;  // extents of the mesh
  int owners;                    // replicas that cut the optimizer's state (ZeRO-1)
  ElementBytes bytes;

  Range layers;
  ModelConfig local;              // the sizes that a block computes with
  double parameters, gradients;   // elements, of all shards together
  double layer, embedding, head;  // elements of the units, whether the stage has them or not
  double copy;                    // of a tied embedding, where another stage updates and writes it

  double micros;           // micro-batches a step
  double tokens;           // of a micro-batch
  bool sequence_parallel;  // the stream is cut over tp ranks, which are several
};

// A count of elements, for arithmetic with bytes.
inline double value(std::int64_t count) { return static_cast<double>(count); }

// The share of a total that one of n ranks sends when all gather, or when each gets a part of the sum.
inline double spread(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

}  // namespace muster::train
