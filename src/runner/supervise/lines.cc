#include "runner/supervise/lines.h"

#include "base/text.h"

namespace muster::runner {
namespace {
constexpr std::size_t kTailLineBytes = 512;
}  // namespace

void Tail::add(std::string_view line) {
  if (trim(line).empty()) return;
  if (kept_.size() == lines_) kept_.pop_front();
  kept_.emplace_back(line.substr(0, kTailLineBytes));
}

std::string Tail::text() const {
  std::string out;
  for (const auto& line : kept_) {
    if (!out.empty()) out += '\n';
    out += line;
  }
  return out;
}

}  // namespace muster::runner
