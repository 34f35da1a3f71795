// How something went on all ranks, where it may fail on one.
#pragma once

#include "base/error.h"
#include "train/comm/comm.h"

namespace muster::train {

// Collective. The error of the first rank that has one, with its code and, if there are several ranks, its
// number: the same on all. An error of the exchange itself is this rank's own.
Result<void> agree(Comm& comm, const Result<void>& mine);

}  // namespace muster::train
