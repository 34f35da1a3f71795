// ckpt ls and ckpt verify: what is in a folder of checkpoints, and whether it is whole.

#include <cstdio>
#include <iostream>

#include "apps/muster-train/commands.h"
#include "base/text.h"
#include "train/agent/agent.h"
#include "train/ckpt/checkpoint.h"

namespace muster::train {
namespace {

int list(const std::string& folder, bool deep) {
  const auto entries = list_checkpoints(folder, deep);
  if (!entries) {
    std::cerr << "muster-train: " << entries.error().message << "\n";
    return kExitFailed;
  }
  if (entries->empty()) {
    std::cerr << "muster-train: no checkpoint in " << folder << "\n";
    return kExitFailed;
  }
  bool damaged = false;
  std::printf("%-10s %-12s %s\n", "STEP", "SIZE", "STATE");
  for (const StepEntry& entry : *entries) {
    std::string state = deep ? "whole" : "complete";
    if (!entry.finished) state = "unfinished: no manifest.json, the save was cut off";
    if (entry.problem) state = "damaged: " + entry.problem->message;
    damaged = damaged || entry.problem.has_value();
    std::printf("%-10lld %-12s %s\n", static_cast<long long>(entry.step),
                entry.bytes > 0 ? format_bytes(entry.bytes).c_str() : "-", state.c_str());
  }
  return damaged ? kExitFailed : kExitDone;
}

}  // namespace

int ckpt_ls_command(const std::string& folder) { return list(folder, false); }
int ckpt_verify_command(const std::string& folder) { return list(folder, true); }

}  // namespace muster::train
