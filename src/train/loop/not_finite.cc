#include "train/loop/not_finite.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"

namespace muster::train {
namespace {

constexpr char kForward = 'a', kBackward = 'b';
constexpr std::size_t kOrderDigits = 12;

// As text, so that the nearest to the cause comes first by its characters; empty: nothing was found.
std::string report_of(const Model::NotFinite& found) {
  if (found.where.empty()) return "";
  char order[32];
  std::snprintf(order, sizeof order, "%0*lld", static_cast<int>(kOrderDigits),
                static_cast<long long>(found.order));
  return (found.backward ? kBackward : kForward) + std::string(order) + found.where;
}

}  // namespace

std::string where_it_began(const Model::NotFinite& mine, Comm& world) {
  const auto reports = world.gather_text(report_of(mine));
  if (!reports) return "; where it began was not found: " + reports.error().message;
  std::string first;
  for (const std::string& report : *reports) {
    if (!report.empty() && (first.empty() || report < first)) first = report;
  }
  if (first.empty()) return ": every rank's own numbers are finite, their sum is not";
  std::vector<std::string> ranks;
  for (std::size_t rank = 0; rank < reports->size(); ++rank) {
    if ((*reports)[rank] == first) ranks.push_back(std::to_string(rank));
  }
  return std::string("; it began in the ") + (first[0] == kBackward ? "gradient of " : "output of ") +
         first.substr(1 + kOrderDigits) + " on rank " + join(ranks, ", ");
}

}  // namespace muster::train
