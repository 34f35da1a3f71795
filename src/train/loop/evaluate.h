// Loss and bits per byte on held-out text. One thread a rank: each calls with its own model and comm.
#pragma once

#include <cstdint>

#include "train/comm/comm.h"
#include "train/data/loader.h"
#include "train/model/model.h"

namespace muster::train {

struct Evaluation {
  double loss = 0;           // nats a token
  double bits_per_byte = 0;  // of the text that the tokens stand for
  std::uint64_t windows = 0;
  std::int64_t tokens = 0;
  std::uint64_t bytes = 0;
};

// Collective. Up to `windows_max` windows, evenly spread, `rows` at a time; the ranks share them. The same
// bits for any number of ranks.
Result<Evaluation> evaluate(Model& model, const Loader& loader, std::uint64_t windows_max, std::uint64_t rows,
                            Comm& comm);

}  // namespace muster::train
