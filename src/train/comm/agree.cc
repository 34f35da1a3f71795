#include "train/comm/agree.h"

#include <string>

namespace muster::train {

// An error goes as its code, one character, and its message; no error as nothing.
Result<void> agree(Comm& comm, const Result<void>& mine) {
  std::string told;
  if (!mine) told = static_cast<char>('0' + static_cast<int>(mine.error().code)) + mine.error().message;
  MUSTER_TRY(const auto all, comm.gather_text(told));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::string at = comm.size() == 1 ? "" : "rank " + std::to_string(rank) + ": ";
    return fail(static_cast<ErrorCode>(all[rank][0] - '0'), at + all[rank].substr(1));
  }
  return {};
}

}  // namespace muster::train
