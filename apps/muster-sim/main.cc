// muster-sim: plays seeds and scenarios through the production core.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "base/time.h"
#include "sim/scenario/scenario.h"
#include "sim/workloads/random.h"

namespace {

using muster::sim::RunResult;

constexpr int kUsage = 2;
constexpr std::uint64_t kSeedMost = 1'000'000'000'000;

void print_summary(std::uint64_t seed, const RunResult& result) {
  std::cout << "seed " << seed << ": " << result.jobs << " jobs, " << result.commits << " commits, "
            << result.crashes << " crashes of musterd, " << muster::format_duration(result.virtual_time)
            << " of virtual time, history " << std::hex << result.history_hash << std::dec << "\n";
  for (const auto& violation : result.violations) std::cout << "VIOLATION: " << violation << "\n";
  if (result.violations.empty()) std::cout << "every check held\n";
}

int play_seeds(std::uint64_t first, std::uint64_t count, bool quiet) {
  int bad = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t seed = first + i;
    const auto result = muster::sim::run_seed(seed);
    if (!quiet && count == 1) {
      for (const auto& line : result.history) std::cout << line << "\n";
    }
    if (count == 1 || !result.violations.empty()) print_summary(seed, result);
    bad += result.violations.empty() ? 0 : 1;
  }
  if (count > 1) std::cout << count << " seeds, " << bad << " with violations\n";
  return bad == 0 ? 0 : 1;
}

int play_scenarios(const std::vector<std::string>& files, bool verbose) {
  int bad = 0;
  for (const auto& file : files) {
    const auto result = muster::sim::run_scenario_file(file);
    if (verbose) {
      for (const auto& line : result.history) std::cout << line << "\n";
    }
    std::cout << file << ": " << (result.failures.empty() ? "ok" : "FAILED") << "\n";
    for (const auto& failure : result.failures) std::cout << "  " << failure << "\n";
    bad += result.failures.empty() ? 0 : 1;
  }
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plays random worlds and scenarios through Muster's control plane, on virtual time.");
  app.footer(
      "Examples:\n  muster-sim --seed 8123\n  muster-sim --seed 1 --count 1000\n"
      "  muster-sim scenario tests/scenarios/[0-9]*.txt");
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  bool quiet = false;
  bool verbose = false;
  std::vector<std::string> files;
  app.add_option("--seed", seed, "The world to play; the same seed gives the same history")
      ->check(CLI::Range(std::uint64_t{0}, kSeedMost));
  app.add_option("--count", count, "How many seeds from there on; only those with violations are shown")
      ->check(CLI::Range(std::uint64_t{1}, kSeedMost));
  app.add_flag("--quiet", quiet, "The summary without the history");
  auto* scenario = app.add_subcommand("scenario", "Plays scenario files and checks what they expect");
  scenario->add_option("files", files, "Scenario files")->required()->check(CLI::ExistingFile);
  scenario->add_flag("--verbose", verbose, "Print the history of each");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return scenario->parsed() ? play_scenarios(files, verbose) : play_seeds(seed, count, quiet);
}
