// The lines of a trainer's log that show progress, and how the CLI shows them. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster::cli {

// The numbers of a trainer's line such as "step=180/400 loss=3.412 tokens_per_s=11900 left_s=112".
struct StepLine {
  double step = 0;
  double steps = 0;
  std::string loss, tokens_per_s;
  std::optional<double> left_s;
};

// nullopt: another line.
std::optional<StepLine> parse_step(std::string_view text);

// "step 180/400  loss 3.412  11.9 k tok/s  left 1 min 52 s"; with `terminal` a bar, too; what is left only
// from a second on.
std::string show_step(const StepLine& line, bool terminal);

}  // namespace muster::cli
