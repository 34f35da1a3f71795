#include "train/comm/agree.h"

#include <algorithm>

namespace muster::train {
namespace {

constexpr char kWell = '+';
constexpr char kFirstCode = 'A';  // of an error: this plus its code

bool failed(const std::string& told) { return told[0] != kWell; }

}  // namespace

Result<Outcomes> exchange_outcomes(Comm& comm, const Result<std::string>& mine) {
  const std::string told =
      mine ? kWell + *mine
           : static_cast<char>(kFirstCode + static_cast<int>(mine.error().code)) + mine.error().message;
  MUSTER_TRY(auto all, comm.gather_text(told));
  const auto first = std::ranges::find_if(all, failed);
  if (first == all.end()) {
    for (std::string& text : all) text.erase(0, 1);
    return Outcomes{.told = std::move(all)};
  }
  const auto others = std::ranges::count_if(all, failed) - 1;
  const std::string more = others == 0   ? ""
                           : others == 1 ? "; 1 more rank failed"
                                         : "; " + std::to_string(others) + " more ranks failed";
  const std::string rank = comm.size() == 1 ? "" : "rank " + std::to_string(first - all.begin()) + ": ";
  return Outcomes{
      .failure = Error{static_cast<ErrorCode>((*first)[0] - kFirstCode), rank + first->substr(1) + more}};
}

Result<std::vector<std::string>> agree(Comm& comm, const Result<std::string>& mine) {
  MUSTER_TRY(auto outcomes, exchange_outcomes(comm, mine));
  if (outcomes.failure) return tl::unexpected(*std::move(outcomes.failure));
  return std::move(outcomes.told);
}

Result<void> agree(Comm& comm, const Result<void>& mine) {
  MUSTER_CHECK(agree(comm, mine ? Result<std::string>("") : tl::unexpected(mine.error())));
  return {};
}

}  // namespace muster::train
