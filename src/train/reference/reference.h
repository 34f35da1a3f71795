// The model once more, as plain loops over plain arrays in fp64: no libtorch, no threads, no cleverness. It
// is what a reader checks the mathematics with, and what the tests hold the fast model against.
//
// Pure functions of their arguments; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/model/params.h"

namespace muster::train::reference {

struct Result {
  double loss_sum = 0;            // natural log, over valid targets
  std::int64_t tokens = 0;        // valid targets
  std::vector<double> logits;     // [rows * sequence, vocab]
  std::vector<double> gradients;  // of loss_sum, laid out as the parameters; a tied head's is added in
};

// parameters: table.numel() values. tokens, targets: row-major [rows, sequence]; a negative target is
// ignored.
Result run(const ParamTable& table, std::span<const double> parameters, std::span<const std::int64_t> tokens,
           std::span<const std::int64_t> targets, std::int64_t rows, std::int64_t sequence);

}  // namespace muster::train::reference
