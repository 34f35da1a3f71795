#include "domain/job.h"

#include <array>

#include "base/text.h"
#include "domain/report.h"

namespace muster::domain {
namespace {

// The words of an enum whose values count from 0.
template <typename Enum, std::size_t N>
std::optional<Enum> parse_word(const std::array<std::string_view, N>& words, std::string_view text) {
  for (std::size_t i = 0; i < N; ++i) {
    if (words[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <typename Enum, std::size_t N>
std::string_view word(const std::array<std::string_view, N>& words, Enum value) {
  return words.at(static_cast<std::size_t>(value));
}

constexpr std::array<std::string_view, 2> kKinds = {"training", "processing"};
constexpr std::array<std::string_view, 7> kPhases = {"queued",  "launching", "preparing", "ready",
                                                     "running", "finishing", "ended"};
constexpr std::array<std::string_view, 3> kOutcomes = {"succeeded", "failed", "stopped"};
constexpr std::array<std::string_view, 4> kCauses = {"program", "user", "infrastructure", "limit"};
constexpr std::array<std::string_view, 9> kRankPhases = {
    "starting", "preparing", "ready", "running", "exited", "uploading", "uploaded", "finished", "lost"};
constexpr std::array<std::string_view, 4> kTargets = {"stage", "run", "upload", "exit"};

}  // namespace

std::string_view to_string(JobKind kind) { return word(kKinds, kind); }
std::string_view to_string(Phase phase) { return word(kPhases, phase); }
std::string_view to_string(Outcome outcome) { return word(kOutcomes, outcome); }
std::string_view to_string(Cause cause) { return word(kCauses, cause); }
std::string_view to_string(RankPhase phase) { return word(kRankPhases, phase); }
std::string_view to_string(Target target) { return word(kTargets, target); }
std::optional<JobKind> parse_job_kind(std::string_view text) { return parse_word<JobKind>(kKinds, text); }
std::optional<Phase> parse_phase(std::string_view text) { return parse_word<Phase>(kPhases, text); }
std::optional<Outcome> parse_outcome(std::string_view text) { return parse_word<Outcome>(kOutcomes, text); }
std::optional<Cause> parse_cause(std::string_view text) { return parse_word<Cause>(kCauses, text); }
std::optional<RankPhase> parse_rank_phase(std::string_view text) {
  return parse_word<RankPhase>(kRankPhases, text);
}
std::optional<Target> parse_target(std::string_view text) { return parse_word<Target>(kTargets, text); }

std::string log_group(JobKind kind) {
  return kind == JobKind::training ? "/aws/sagemaker/TrainingJobs" : "/aws/sagemaker/ProcessingJobs";
}

std::string host_name(int rank) { return "algo-" + std::to_string(rank + 1); }

std::string log_stream(std::string_view job_name, int rank, Time attempt_created) {
  return std::string(job_name) + "/" + host_name(rank) + "-" + std::to_string(attempt_created.unix_ms);
}

std::string to_string(const LaunchId& id) {
  return "a" + to_string(id.attempt) + "-r" + std::to_string(id.rank) + "-i" + std::to_string(id.incarnation);
}

std::optional<LaunchId> parse_launch_id(std::string_view text) {
  const auto parts = split(text, '-');
  if (parts.size() != 3) return std::nullopt;
  std::array<std::int64_t, 3> numbers{};
  constexpr std::string_view kLetters = "ari";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size() < 2 || parts[i].size() > 19 || parts[i].front() != kLetters[i]) return std::nullopt;
    const auto number = parse_int(parts[i].substr(1));
    if (!number || *number < 0) return std::nullopt;
    numbers[i] = *number;
  }
  if (numbers[1] > 1'000'000 || numbers[2] > 1'000'000) return std::nullopt;
  return LaunchId{AttemptId{static_cast<std::uint64_t>(numbers[0])}, static_cast<int>(numbers[1]),
                  static_cast<int>(numbers[2])};
}

}  // namespace muster::domain
