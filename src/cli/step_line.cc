#include "cli/step_line.h"

#include <array>
#include <cstdio>

#include "base/text.h"
#include "base/time.h"
#include "cli/output.h"

namespace muster::cli {

std::optional<StepLine> parse_step(std::string_view text) {
  StepLine out;
  bool found = false;
  for (const auto word : split(text, ' ')) {
    const auto equals = word.find('=');
    if (equals == std::string_view::npos) continue;
    const auto key = word.substr(0, equals);
    const auto value = word.substr(equals + 1);
    if (key == "step") {
      const auto slash = value.find('/');
      const auto step = parse_double(value.substr(0, slash));
      const auto steps =
          slash == std::string_view::npos ? std::nullopt : parse_double(value.substr(slash + 1));
      if (!step || !steps || *steps <= 0) return std::nullopt;
      out.step = *step;
      out.steps = *steps;
      found = true;
    } else if (key == "loss") {
      out.loss = value;
    } else if (key == "tokens_per_s") {
      out.tokens_per_s = value;
    } else if (key == "left_s") {
      out.left_s = parse_double(value);
    }
  }
  if (!found || out.loss.empty()) return std::nullopt;
  return out;
}

std::string show_step(const StepLine& line, bool terminal) {
  std::array<char, 160> buffer{};
  const auto speed = parse_double(line.tokens_per_s).value_or(0);
  std::snprintf(buffer.data(), buffer.size(), "step %.0f/%.0f  loss %s  %.1f k tok/s", line.step, line.steps,
                line.loss.c_str(), speed / 1000.0);
  std::string out = buffer.data();
  if (terminal) out += "  " + bar(line.step / line.steps, 20);
  if (line.left_s.value_or(0) >= 1)
    out += "  left " + format_duration(Millis{static_cast<std::int64_t>(*line.left_s) * 1000});
  return out;
}

}  // namespace muster::cli
