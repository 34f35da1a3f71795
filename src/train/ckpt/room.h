// The room that something large found on its disk, to explain that it did not do. A value; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "train/ckpt/checkpoint.h"

namespace muster::train {

inline constexpr char kWhenFull[] = "free space there, or choose another folder";

class Room {
 public:
  Room() = default;
  // Looks how much is free. `needed`: bytes of all that is to be written, by all ranks; `remedy`: what to do
  // where they do not fit.
  Room(std::string folder, std::uint64_t needed, std::string remedy);

  // Of a full disk (no_space): with what is needed, what was free and what to do. Others
  // stay as they are.
  Error explained(const Error& error) const;

 private:
  std::string folder_;
  std::uint64_t needed_ = 0, free_ = 0;
  std::string remedy_;
};

std::uint64_t bytes_of(const std::vector<TensorInfo>& tensors);

}  // namespace muster::train
