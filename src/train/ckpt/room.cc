#include "train/ckpt/room.h"

#include <sys/statvfs.h>

#include "base/text.h"

namespace muster::train {

Room::Room(std::string folder, std::uint64_t needed, std::string remedy)
    : folder_(std::move(folder)), needed_(needed), remedy_(std::move(remedy)) {
  struct statvfs disk {};
  if (statvfs(folder_.c_str(), &disk) == 0)
    free_ = static_cast<std::uint64_t>(disk.f_bavail) * static_cast<std::uint64_t>(disk.f_frsize);
}

Error Room::explained(const Error& error) const {
  if (error.code != ErrorCode::no_space) return error;
  return {error.code, error.message + ": " + format_bytes(needed_) + " are needed in all, and " +
                          format_bytes(free_) + " were free in " + folder_ + " before; " + remedy_};
}

std::uint64_t bytes_of(const std::vector<TensorInfo>& tensors) {
  std::uint64_t sum = 0;
  for (const TensorInfo& tensor : tensors) sum += tensor.numel() * tensor.element_bytes();
  return sum;
}

}  // namespace muster::train
