// A plan for people. Pure; any thread.
#pragma once

#include <string>

#include "train/plan/plan.h"

namespace muster::train {

// A table of the stages, and what follows from it; ends with a line end.
std::string to_text(const Plan& plan, const Config& config);

// Bytes to three digits: 2.13 GiB, 34.5 MiB, 512 KiB.
std::string amount(double bytes);

}  // namespace muster::train
