// What a run tells while it trains: lines for people and metric definitions, and every step as a JSON line in
// a file (docs/formats/metrics-v1.md). Only rank 0 has one that says anything. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "train/ckpt/saver.h"
#include "train/loop/evaluate.h"

namespace muster::train {

struct JournalOptions {
  std::string path = {};  // of the JSON lines; empty: none
  std::int64_t steps = 1;
  std::int64_t every = 1;                       // steps from line to line
  std::int64_t step_tokens = 1;                 // over all ranks
  double flop_per_token = 0;                    // forward and backward
  double peak_flop_s = 0;                       // of all ranks together, as stated; 0: no share of it is told
  std::function<void(const std::string&)> say;  // one line
};

struct StepNumbers {
  std::int64_t step = 0;                      // done
  std::optional<double> loss, gradient_norm;  // none: no target of the batch counts
  double learning_rate = 0;
  double exchange_s = 0;     // of this rank, in exchanges, since the step before
  std::uint64_t tokens = 0;  // consumed by the run so far
};

class Journal {
 public:
  // Nothing is said or written until begin().
  explicit Journal(JournalOptions options) : options_(std::move(options)) {}

  // The run goes on from `step`; 0: it starts anew. A file that is there keeps what tells of the time until
  // then, so that no step appears twice. Errors name the path.
  Result<void> begin(std::int64_t step);

  void step(const StepNumbers& numbers);
  void evaluated(std::int64_t step, const Evaluation& evaluation);
  void saved(const SaveReport& report);

  // Time that is not a step's: it counts in no speed.
  void leave_out(std::chrono::steady_clock::duration time);

 private:
  void write(const json::Object& record);
  double peak_share(double tokens_per_s) const;

  const JournalOptions options_;
  UniqueFd file_;
  std::int64_t line_step_ = 0;  // of the last line
  std::chrono::steady_clock::time_point line_at_, step_at_;
};

}  // namespace muster::train
