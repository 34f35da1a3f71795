// observe(): the volatile facts that an event carries. Nothing here is committed.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "control/control.h"
#include "control/detail/edit.h"

namespace muster::control {
namespace {

struct Observe {
  State& state;

  void operator()(const Report& report) const { heard(report.report.launch, report.report.message); }
  void operator()(const RankHeard& event) const { heard(event.launch, {}); }
  void operator()(const LaunchBegun& event) const { state.launching.insert(event.attempt); }

  void operator()(const LaunchDone& event) const {
    state.launching.erase(event.attempt);
    const auto attempt = state.attempts.find(event.attempt);
    if (event.error || attempt == state.attempts.end()) return;
    for (std::size_t rank = 0; rank < attempt->second.ranks.size(); ++rank) {
      const auto launch = detail::launch_of(attempt->second, rank);
      if (detail::is_over(attempt->second.ranks[rank].phase)) continue;
      state.seen.emplace(launch, Seen{attempt->second.ranks[rank].node, true});
      touch(launch);
    }
  }

  void operator()(const RankGone& event) const {
    const auto known = current(state, event.launch);
    auto& seen = state.seen[event.launch];
    if (known) seen.node = known->rank->node;
    seen.alive = false;
  }

  void operator()(const RankReleased& event) const { state.seen.erase(event.launch); }

  // The engine's word, except about launches that something newer was heard of.
  void operator()(const EngineInventory& event) const {
    state.nodes = event.inventory.nodes;
    state.inventory_known = true;
    std::map<domain::LaunchId, Seen> fresh;
    for (const auto& observation : event.observations) {
      auto alive = observation.alive;
      const auto old = state.seen.find(observation.id);
      if (old != state.seen.end() && !old->second.alive) alive = false;  // the dead do not come back
      fresh[observation.id] = {observation.node, alive};
    }
    for (const auto& [launch, seen] : state.seen) {
      const auto guard = state.guards.find(launch);
      if (guard != state.guards.end() && guard->second.heard > event.asked) fresh.emplace(launch, seen);
    }
    state.seen = std::move(fresh);
  }

  void operator()(const Tick& tick) const {
    const auto delta = std::min(tick.elapsed, kTickMax);
    for (const auto& [id, attempt] : state.attempts) {
      const auto& job = state.jobs.at(attempt.job);
      bool runs = false;
      for (std::size_t i = 0; i < attempt.ranks.size(); ++i) {
        auto& guard = state.guards[detail::launch_of(attempt, i)];
        const auto phase = attempt.ranks[i].phase;
        if (job.stop && phase < domain::RankPhase::exited) guard.stopping += delta;
        if (phase == domain::RankPhase::uploaded) guard.leaving += delta;
        runs = runs || phase == domain::RankPhase::running;
      }
      auto& running = state.running.try_emplace(id, attempt.ran).first->second;
      if (runs) running += delta;
    }
    std::erase_if(state.running, [&](const auto& entry) { return !state.attempts.contains(entry.first); });
    for (const auto& [launch, seen] : state.seen) state.guards.try_emplace(launch);
    std::erase_if(state.guards, [&](const auto& entry) {
      return !state.seen.contains(entry.first) && !current(state, entry.first);
    });
    for (auto& [launch, guard] : state.guards) guard.silent += delta;
  }

  template <typename Other>
  void operator()(const Other&) const {}

 private:
  void touch(const domain::LaunchId& launch) const {
    auto& guard = state.guards[launch];
    guard.heard = state.moment;
    guard.silent = Millis{0};
  }

  void heard(const domain::LaunchId& launch, const std::string& message) const {
    const auto known = current(state, launch);
    if (!known && !state.seen.contains(launch)) return;  // a stranger leaves no trace
    touch(launch);
    if (!message.empty()) state.guards[launch].message = clip_characters(message, 256, "...");
    if (known && !detail::is_over(known->rank->phase)) {
      state.seen.emplace(launch, Seen{known->rank->node, true});
    }
  }
};

}  // namespace

void observe(State& state, const Event& event) {
  ++state.moment;
  std::visit(Observe{state}, event);
}

}  // namespace muster::control
