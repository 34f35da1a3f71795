#include "sim/workloads/random.h"

#include <algorithm>
#include <utility>

namespace muster::sim {
namespace {

constexpr Millis kQuietFrom{120'000};
// What is left must be over long before: leases, back-off and the longest jobs end within minutes.
constexpr Millis kPatience{7'200'000};

// Each kind of fault is off in half of the worlds, so that it meets the others in every combination.
double some(Rng& rng, double most) { return rng.chance(0.5) ? 0 : most * rng.uniform(); }

Odds random_odds(Rng& rng) {
  if (rng.chance(0.1)) return {};  // a friendly world
  Odds odds;
  odds.commit_fails = some(rng, 0.1);
  odds.commit_fails_late = some(rng, 0.1);
  odds.crash_before = some(rng, 0.05);
  odds.crash_after = some(rng, 0.05);
  odds.launch_fails = some(rng, 0.3);
  odds.crash_in_launch = some(rng, 0.3);
  odds.drop = some(rng, 0.3);
  odds.duplicate = some(rng, 0.3);
  odds.late = some(rng, 0.3);
  odds.crash = some(rng, 0.03);
  odds.runner_dies = some(rng, 0.02);
  odds.runner_hangs = some(rng, 0.01);
  odds.node_dies = some(rng, 0.01);
  odds.node_parts = some(rng, 0.01);
  odds.wall_clock_steps = some(rng, 0.02);
  return odds;
}

Program random_program(Rng& rng, int nodes) {
  Program program;
  program.start = Millis{rng.between(10, 2'000)};
  program.staging = Millis{rng.between(0, 10'000)};
  program.upload = Millis{rng.between(0, 5'000)};
  program.duration = Millis{rng.between(0, 60'000)};
  program.deaf = rng.chance(0.1);
  program.lingers = rng.chance(0.03);
  if (rng.chance(0.3)) {
    program.failing_rank = static_cast<int>(rng.below(static_cast<std::uint64_t>(nodes)));
    program.exit_code = static_cast<int>(rng.between(1, 255));
    program.staging_fails = rng.chance(0.2);
    program.upload_fails = !program.staging_fails && rng.chance(0.3);
  }
  return program;
}

JobPlan random_job(Rng& rng, int number, int cluster) {
  JobPlan plan;
  plan.name = "j" + std::to_string(number);
  plan.kind = rng.chance(0.3) ? domain::JobKind::processing : domain::JobKind::training;
  plan.nodes = static_cast<int>(rng.between(1, cluster));
  plan.retries = static_cast<int>(rng.between(0, 3));
  plan.grace = Millis{rng.between(1'000, 20'000)};
  plan.program = random_program(rng, plan.nodes);
  if (rng.chance(0.1)) {
    plan.program.duration = Millis{60'000};
    plan.max_runtime = Millis{rng.between(1'000, 30'000)};
    plan.program.failing_rank = -1;
  }
  return plan;
}

}  // namespace

RunResult run_seed(std::uint64_t seed) {
  Rng rng(Rng::mix(seed));
  WorldOptions options;
  options.seed = rng.next();
  options.nodes = static_cast<int>(rng.between(1, 6));
  options.odds = random_odds(rng);
  options.quiet_from = kQuietFrom;
  World world(options);
  const int jobs = static_cast<int>(rng.between(2, 9));
  for (int i = 1; i <= jobs; ++i) {
    const auto plan = random_job(rng, i, options.nodes);
    const Millis at{rng.between(0, 60'000)};
    world.after(at, [&world, plan] { world.submit(plan); });
    if (!rng.chance(0.3)) continue;
    const Millis stop_at = at + Millis{rng.between(0, 60'000)};
    world.after(stop_at, [&world, plan] { world.stop(plan.kind, plan.name); });
    if (rng.chance(0.3))
      world.after(stop_at + Millis{500}, [&world, plan] { world.stop(plan.kind, plan.name); });
  }
  for (auto prunes = rng.between(0, 4); prunes > 0; --prunes) {
    world.after(Millis{rng.between(5'000, 150'000)}, [&world] { world.prune(); });
  }
  world.run_until_done(kPatience);
  world.check_end();
  return {world.checkers().violations(),
          world.history(),
          world.history_hash(),
          world.commits(),
          world.crashes(),
          world.timeline().elapsed(),
          static_cast<std::size_t>(jobs),
          world.checkers().forgotten_jobs()};
}

}  // namespace muster::sim
