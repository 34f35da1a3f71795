// One rank of a training run as a process: joins the others, opens the data, trains, and says how it ended.
// Called once a process, from main().
#pragma once

#include <set>
#include <string>

#include "train/agent/discover.h"
#include "train/config/config.h"

namespace muster::train {

struct RankOptions {
  RankPlace place;
  Config config;
  std::set<std::string> accepted;
  std::string gemm_path;  // of fix_gemm_path()
  std::string job;        // prefix of the store's keys
  bool has_agent = true;  // of ours; under torchrun: false
};

// Lines of progress go to stdout (rank 0), errors to stderr. SIGTERM asks all ranks to save and stop, once
// training has begun; SIGINT is left to the agent unless there is none. The answer is an exit code of
// agent.h; a rank that fails ends the process with one, whatever failed.
int run_rank(const RankOptions& options);

}  // namespace muster::train
