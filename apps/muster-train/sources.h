// Where the configuration of a command comes from: a file, a job, --set. Called from one thread.
#pragma once

#include "apps/muster-train/commands.h"
#include "train/config/config.h"

namespace muster::train {

struct Sources {
  Config config;
  JobSettings job;
};

Result<Sources> read_sources(const SourceArguments& arguments);

}  // namespace muster::train
