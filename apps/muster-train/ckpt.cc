// ckpt ls, verify and convert: what is in a folder of checkpoints, whether it is whole, and a copy of one
// that is cut otherwise.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>

#include "apps/muster-train/commands.h"
#include "base/text.h"
#include "train/agent/agent.h"
#include "train/ckpt/checkpoint.h"
#include "train/ckpt/convert.h"

namespace muster::train {
namespace {

// On stderr: on a terminal one line that changes, else a line every ten seconds.
class ProgressLine {
 public:
  explicit ProgressLine(const char* what) : what_(what) {}
  ~ProgressLine() {
    if (shown_ && terminal_) std::fprintf(stderr, "\r\033[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  Progress progress() {
    return [this](std::uint64_t done, std::uint64_t total) { show(done, total); };
  }

 private:
  void show(std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10'000)))
      return;
    last_ = now;
    shown_ = true;
    const double percent = total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 100.0;
    std::fprintf(stderr, terminal_ ? "\r\033[K%s %s of %s  %.0f %%" : "%s %s of %s  %.0f %%\n", what_,
                 format_bytes(done).c_str(), format_bytes(total).c_str(), percent);
  }

  const char* what_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int failed(const std::string& message) {
  std::cerr << "muster-train: " << message << "\n";
  return kExitFailed;
}

// What keeps the step from being looked at says nothing of it.
bool unreadable(const Error& error) {
  return error.code == ErrorCode::io || error.code == ErrorCode::permission_denied;
}

int list(const std::string& folder, bool deep) {
  const auto entries = [&] {
    ProgressLine line("read");
    return list_checkpoints(folder, deep, line.progress());
  }();
  if (!entries) return failed(entries.error().message);
  if (entries->empty())
    return failed(access(folder.c_str(), F_OK) == 0 ? "no checkpoint in " + folder
                                                    : folder + " is not there");
  bool damaged = false;
  std::printf("%-10s %-12s %s\n", "STEP", "SIZE", "STATE");
  for (const StepEntry& entry : *entries) {
    std::string state = deep ? "whole" : "complete";
    if (!entry.finished) state = "unfinished: no manifest.json, the save was cut off";
    if (entry.problem)
      state = (unreadable(*entry.problem) ? "unreadable: " : "damaged: ") + entry.problem->message;
    damaged = damaged || entry.problem.has_value();
    std::printf("%-10lld %-12s %s\n", static_cast<long long>(entry.step),
                entry.bytes > 0 ? format_bytes(entry.bytes).c_str() : "-", state.c_str());
  }
  return damaged ? kExitFailed : kExitDone;
}

// The step asked for, or the newest finished one.
Result<Reader> open_step(const ConvertArguments& arguments) {
  if (arguments.step) return Reader::open(step_folder(arguments.from, *arguments.step));
  auto latest = latest_checkpoint(arguments.from, OnDamage::refuse);
  if (!latest) {
    return fail(latest.error().code, latest.error().message + "; another step may be whole: --step N");
  }
  for (const auto& notice : latest->notices) std::cerr << "notice: " << notice << "\n";
  if (latest->reader) return std::move(*latest->reader);
  return fail(ErrorCode::not_found, "no finished checkpoint in " + arguments.from);
}

Result<std::string> convert(const ConvertArguments& arguments) {
  MUSTER_TRY(Reader reader, open_step(arguments));
  ProgressLine line("written");
  MUSTER_CHECK(convert_checkpoint(
      reader, arguments.to,
      {.ranks = arguments.ranks, .weights_only = arguments.weights_only, .progress = line.progress()}));
  MUSTER_TRY(const Reader result, Reader::open(step_folder(arguments.to, reader.info().step)));
  return "step " + std::to_string(reader.info().step) + " of " + arguments.from + ": " +
         std::to_string(result.info().tensors.size()) + " tensors, " + format_bytes(result.bytes()) + " in " +
         std::to_string(result.files()) + (result.files() == 1 ? " file" : " files") + " in " +
         step_folder(arguments.to, reader.info().step);
}

}  // namespace

int ckpt_ls_command(const std::string& folder) { return list(folder, false); }
int ckpt_verify_command(const std::string& folder) { return list(folder, true); }

int ckpt_convert_command(const ConvertArguments& arguments) {
  const auto done = convert(arguments);
  if (!done) return failed(done.error().message);
  std::cout << *done << "\n";
  return kExitDone;
}

}  // namespace muster::train
