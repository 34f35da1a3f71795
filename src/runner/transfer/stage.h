// File-mode channels: objects below a prefix become files below a folder. Threading: one call at a time a
// folder; the transfers inside run in parallel.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>

#include "domain/launch.h"
#include "runner/transfer/objects.h"
#include "runner/transfer/parallel.h"

namespace muster::runner {

struct Transferred {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
};
std::string describe(const Transferred& amount);  // "24.0 MiB in 12 files"

// `channel` into `folder` for the given rank. not_found when no object begins with the prefix; an empty share
// of a sharded channel is fine. Errors name the channel, and a full disk with what is missing.
Result<Transferred> stage_channel(Objects& objects, const domain::Channel& channel, int rank, int world,
                                  const std::string& folder, std::stop_token stop);

// Everything below `from` into `folder`; nothing there is fine (a first start).
Result<Transferred> download_tree(Objects& objects, const S3Location& from, const std::string& folder,
                                  std::stop_token stop);

}  // namespace muster::runner
