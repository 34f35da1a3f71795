// How something went on all ranks, where it may fail on one. Collective: all ranks of the group call it, each
// with its own outcome; one thread a Comm.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "train/comm/comm.h"

namespace muster::train {

// The error of the first rank that has one, with its code and, if there are several ranks, its number and how
// many failed besides: the same on all. An error of the exchange itself is this rank's own.
Result<void> agree(Comm& comm, const Result<void>& mine);

// The same, where each rank has something to tell the others: if it went well everywhere, what each told, in
// rank order.
Result<std::vector<std::string>> agree(Comm& comm, const Result<std::string>& mine);

// The same with the two kinds of error apart: that of the exchange is this rank's own, a failure everybody's.
struct Outcomes {
  std::optional<Error> failure = {};
  std::vector<std::string> told = {};  // without a failure: what each told
};
Result<Outcomes> exchange_outcomes(Comm& comm, const Result<std::string>& mine);

}  // namespace muster::train
