// Outputs: a folder of the node becomes objects, or one archive of all nodes' folders.
//
// A merged archive is made by rank 0 after all others have uploaded: they leave their part as a plain tar
// under <archive key>.parts/algo-N/files.tar, which rank 0 takes in and deletes. Where two ranks have a file
// of one name, that of the higher rank wins, and the log says so. One thread.
#pragma once

#include <atomic>
#include <functional>
#include <stop_token>
#include <string>

#include "domain/launch.h"
#include "runner/transfer/objects.h"
#include "runner/transfer/stage.h"

namespace muster::runner {

struct UploadContext {
  int rank = 0;
  int world = 1;
  Time attempt_created;  // objects of this age or younger are of this attempt
  std::string opt_ml = "/opt/ml";
  std::string scratch;  // folder for archives on their way
  int threads = 8;
  std::function<void(std::string)> log;  // a line for the job's log
};

// Errors name the output. A folder that is missing counts as empty.
Result<Transferred> upload_output(Objects& objects, const domain::Output& output,
                                  const UploadContext& context, std::stop_token stop);

}  // namespace muster::runner
