// The rules of a run's layout: which ranks, stages and parts of the batch a configuration makes, and which
// configurations cannot work at all. A refusal names the rule and what would fit. Pure; any thread.
#pragma once

#include <vector>

#include "train/config/config.h"
#include "train/data/loader.h"
#include "train/mesh/mesh.h"
#include "train/model/model.h"
#include "train/pipeline/schedule.h"

namespace muster::train {

// Where the ranks stand and what each computes, once it is clear that it can work.
struct RunLayout {
  Mesh mesh;
  std::vector<Range> stages;  // layers
  BatchPart share;            // of a rank's part of the batch; the same size for all
  PipelineSchedule schedule;
  ActivationCheckpointing activation_checkpointing;
};
// invalid_argument: ranks, batch, layers, heads or sizes that do not go together. config.model must have
// passed validated().
Result<RunLayout> run_layout(const Config& config, int ranks);

}  // namespace muster::train
