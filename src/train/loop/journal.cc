#include "train/loop/journal.h"

#include <fcntl.h>

#include <filesystem>

#include "base/text.h"
#include "train/formatted.h"
#include "train/loop/machine.h"

namespace muster::train {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::uint64_t kFileMax = 4ULL << 30;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// Whether a run that goes on from `step` will not write this line again. A torn last line is none.
bool stays(std::string_view line, std::int64_t step) {
  const auto record = json::parse_object(line);
  const auto at = record ? json::opt_int(*record, "step") : std::nullopt;
  if (!at) return false;
  return json::opt_string(*record, "type") == "eval" ? *at < step : *at <= step;
}

json::Value or_null(std::optional<double> number) { return number ? json::Value(*number) : json::Value(); }

std::string or_none(std::optional<double> number) { return number ? formatted("%.4f", *number) : "none"; }

// A file that is there is of an earlier run, or a mistake in the path.
Result<void> check_metrics(std::string_view text) {
  constexpr std::string_view kBegin = R"({"type":)";  // as write() begins a line; the only one may be torn
  if (text.substr(0, kBegin.size()) == kBegin.substr(0, text.size())) return {};
  return fail(ErrorCode::invalid_argument,
              "this file is there and has no metrics of a run; name another, or remove it");
}

// What stays of it in a run that goes on from `step`.
Result<std::string> kept_lines(const std::string& path, std::int64_t step) {
  const auto text = read_file(path, kFileMax);
  if (!text && text.error().code != ErrorCode::not_found) return tl::unexpected(text.error());
  std::string kept;
  if (!text) return kept;
  MUSTER_CHECK(check_metrics(*text));
  if (step == 0) {
    if (!text->empty()) MUSTER_CHECK(write_file_atomic(path + ".before", *text));
    return kept;
  }
  for (const auto line : split(*text, '\n')) {
    if (stays(line, step)) kept.append(line).append("\n");
  }
  return kept;
}

}  // namespace

Result<void> Journal::begin(std::int64_t step) {
  line_step_ = step;
  line_at_ = step_at_ = Clock::now();
  if (options_.path.empty()) return {};
  const auto open = [&]() -> Result<void> {
    if (const auto slash = options_.path.rfind('/'); slash != std::string::npos && slash > 0)
      MUSTER_CHECK(make_directories(options_.path.substr(0, slash)));
    std::error_code none;
    const fs::path there = fs::canonical(options_.path, none);  // where links lead
    const std::string path = there.empty() ? options_.path : there.string();
    if (fs::exists(path, none) && !fs::is_regular_file(path, none)) {  // a pipe, a terminal: as it is
      MUSTER_TRY(file_, open_file(path, O_WRONLY | O_APPEND | O_NONBLOCK));
      return {};
    }
    MUSTER_TRY(const std::string kept, kept_lines(path, step));
    MUSTER_CHECK(write_file_atomic(path, kept));
    MUSTER_TRY(file_, open_file(path, O_WRONLY | O_APPEND));
    return {};
  };
  auto opened = open();
  if (!opened) return tl::unexpected(opened.error().with_context("log.metrics = " + options_.path));
  return {};
}

// A full disk is no reason to stop a training.
void Journal::write(const json::Object& record) {
  if (!file_) return;
  if (const auto written = write_all(file_.get(), json::dump(record) + "\n"); !written) {
    options_.say("notice: log.metrics = " + options_.path + " ends here: " + written.error().message);
    file_.reset();
  }
}

double Journal::peak_share(double tokens_per_s) const {
  return options_.peak_flop_s > 0 ? options_.flop_per_token * tokens_per_s / options_.peak_flop_s : 0;
}

void Journal::step(const StepNumbers& numbers) {
  const auto now = Clock::now();
  const auto tokens = static_cast<double>(options_.step_tokens);
  const double seconds = seconds_between(step_at_, now);
  const std::uint64_t resident = resident_bytes();
  step_at_ = now;
  json::Object record{{"type", "step"},
                      {"step", numbers.step},
                      {"loss", or_null(numbers.loss)},
                      {"grad_norm", or_null(numbers.gradient_norm)},
                      {"lr", numbers.learning_rate},
                      {"tokens", numbers.tokens},
                      {"tokens_per_s", tokens / seconds},
                      {"exchange_s", numbers.exchange_s},
                      {"rss_bytes", resident},
                      {"seconds", seconds}};
  if (options_.peak_flop_s > 0) record["peak_share"] = peak_share(tokens / seconds);
  write(record);

  if (numbers.step % options_.every != 0 && numbers.step != options_.steps && numbers.step != 1) return;
  const auto steps = static_cast<double>(numbers.step - line_step_);
  const double each = seconds_between(line_at_, now) / steps;
  std::string line = "step=" + std::to_string(numbers.step) + "/" + std::to_string(options_.steps) +
                     " loss=" + or_none(numbers.loss) + " grad_norm=" + or_none(numbers.gradient_norm) +
                     formatted(" lr=%.3e tokens_per_s=%.0f", numbers.learning_rate, tokens / each);
  if (options_.peak_flop_s > 0) line += formatted(" peak_share=%.3f", peak_share(tokens / each));
  line += formatted(" rss_mib=%llu left_s=%.0f", static_cast<unsigned long long>(resident >> 20),
                    each * static_cast<double>(options_.steps - numbers.step));
  options_.say(line);
  line_at_ = now;
  line_step_ = numbers.step;
}

void Journal::evaluated(std::int64_t step, const Evaluation& e) {
  write({{"type", "eval"},
         {"step", step},
         {"loss", e.tokens > 0 ? json::Value(e.loss) : json::Value()},
         {"bits_per_byte", e.bytes > 0 ? json::Value(e.bits_per_byte) : json::Value()},
         {"tokens", e.tokens},
         {"bytes", e.bytes}});
  options_.say("eval step=" + std::to_string(step) + " split=held-out " + to_text(e));
}

void Journal::saved(const SaveReport& report) {
  write({{"type", "checkpoint"},
         {"step", report.step},
         {"path", report.path},
         {"stall_s", report.stall_s},
         {"seconds", report.seconds}});
  options_.say("checkpoint step=" + std::to_string(report.step) + " path=" + report.path +
               formatted(" stall_s=%.3f seconds=%.2f", report.stall_s, report.seconds));
}

void Journal::leave_out(Clock::duration time) {
  line_at_ += time;
  step_at_ += time;
}

}  // namespace muster::train
