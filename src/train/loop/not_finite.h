// Where a number that is not finite began, of what each rank saw of a step that went wrong. One thread a
// rank.
#pragma once

#include <string>

#include "train/comm/comm.h"
#include "train/model/model.h"

namespace muster::train {

// Collective over all ranks, each of which has computed the step under Model::watch(). What the nearest to
// the cause found, the same text on all: "; it began in the output of model.layers.3 on rank 1".
std::string where_it_began(const Model::NotFinite& mine, Comm& world);

}  // namespace muster::train
