// A small table and flat buffers of random numbers, for tests. Functions without state; any thread.
#pragma once

#include <cstring>

#include "base/rng.h"
#include "train/model/flat_buffer.h"
#include "train/model/params.h"

namespace muster::train {

inline ParamTable table_of(std::int64_t vocab = 300) {
  ModelConfig config = preset("tiny").value();
  config.vocab = vocab;  // several blocks in one parameter
  return ParamTable(config);
}

template <typename T>
FlatBuffer random_buffer(std::int64_t numel, std::uint64_t seed) {
  FlatBuffer buffer(numel, dtype_of<T>);
  Rng rng(seed);
  for (T& x : buffer.as<T>()) x = static_cast<T>(rng.uniform() - 0.5);
  return buffer;
}

inline bool same_bytes(const FlatBuffer& a, const FlatBuffer& b) {
  return a.bytes().size() == b.bytes().size() && std::memcmp(a.data(), b.data(), a.bytes().size()) == 0;
}

}  // namespace muster::train
