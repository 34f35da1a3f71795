#include "train/loop/evaluate.h"

#include <algorithm>
#include <chrono>
#include <numbers>

#include "base/time.h"
#include "train/formatted.h"

namespace muster::train {

namespace {

// Says how far a loop is, every five seconds.
class PassesDone {
 public:
  explicit PassesDone(std::function<void(const std::string&)> say) : say_(std::move(say)) {}
  void at(double share) {
    const double now = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!say_ || share == 0 || now - last_ < 5) return;
    last_ = now;
    const Millis left(static_cast<std::int64_t>(1000 * (now / share - now)));
    say_(formatted("evaluating  %.0f %%  left ", 100 * share) + format_duration(left));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::function<void(const std::string&)> say_;
  const Clock::time_point start_ = Clock::now();
  double last_ = 0;  // seconds after start_
};

}  // namespace

Result<std::optional<Evaluation>> evaluate(Pipeline& pipeline, const Loader& loader,
                                           const EvaluationOptions& options, Comm& world) {
  const EvaluationPart& mine = options.part;
  const std::uint64_t rows = options.rows, windows = std::min(options.windows_max, loader.windows()),
                      groups = (windows + rows - 1) / rows;
  const auto window_of = [&](std::uint64_t i) { return i * loader.windows() / windows; };
  // Each group is summed by one part; the others add exact zeros.
  std::vector<double> losses(groups);
  std::vector<std::int64_t> counts(2);  // tokens, bytes
  const auto parts = static_cast<std::uint64_t>(mine.parts);
  Samples all, one;
  PassesDone passes(options.say);
  for (std::uint64_t begin = 0; begin < groups; begin += parts) {
    passes.at(static_cast<double>(begin) / static_cast<double>(groups));
    if (options.go_on) {
      MUSTER_TRY(const bool on, options.go_on());
      if (!on) return std::optional<Evaluation>();
    }
    const std::uint64_t wanted = begin + static_cast<std::uint64_t>(mine.part);
    const std::uint64_t group = std::min(wanted, groups - 1);
    const std::uint64_t first = group * rows, count = std::min(rows, windows - first);
    std::uint64_t bytes = 0;
    all.tokens.clear();
    all.targets.clear();
    all.document_begins.clear();
    for (std::uint64_t i = first; i < first + count; ++i) {
      MUSTER_CHECK(loader.windows_in_order(window_of(i), 1, one));
      all.tokens.insert(all.tokens.end(), one.tokens.begin(), one.tokens.end());
      all.targets.insert(all.targets.end(), one.targets.begin(), one.targets.end());
      all.document_begins.insert(all.document_begins.end(), one.document_begins.begin(),
                                 one.document_begins.end());
      MUSTER_TRY(const std::uint64_t of_window, loader.target_bytes(window_of(i)));
      bytes += of_window;
    }
    Batch batch{.tokens = all.tokens,
                .targets = all.targets,
                .rows = static_cast<std::int64_t>(count),
                .sequence = static_cast<std::int64_t>(loader.sequence())};
    if (options.document_mask) batch.documents = all.document_begins;
    MUSTER_TRY(const StepResult result, pipeline.evaluate(batch));
    if (!mine.counts || group != wanted) continue;
    losses[group] = result.loss_sum;
    counts[0] += result.tokens;
    counts[1] += static_cast<std::int64_t>(bytes);
  }
  MUSTER_CHECK(world.all_reduce<double>(losses));
  MUSTER_CHECK(world.all_reduce<std::int64_t>(counts));
  double sum = 0;
  for (const double loss : losses) sum += loss;
  Evaluation out{.windows = windows, .tokens = counts[0], .bytes = static_cast<std::uint64_t>(counts[1])};
  out.loss = sum / static_cast<double>(std::max<std::int64_t>(1, out.tokens));
  out.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(std::max<std::uint64_t>(1, out.bytes));
  return std::optional(out);
}

std::string to_text(const Evaluation& e) {
  return "loss=" + (e.tokens > 0 ? formatted("%.4f", e.loss) : "none") +
         " bits_per_byte=" + (e.bytes > 0 ? formatted("%.4f", e.bits_per_byte) : "none") +
         " tokens=" + std::to_string(e.tokens) + " bytes=" + std::to_string(e.bytes);
}

}  // namespace muster::train
