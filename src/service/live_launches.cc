#include "service/live_launches.h"

#include <utility>

namespace muster::service {

void LiveLaunches::publish(const control::State& state) {
  auto next = std::make_shared<Snapshot>();
  for (const auto& [id, attempt] : state.attempts) {
    const auto& job = state.jobs.at(attempt.job);
    for (std::size_t i = 0; i < attempt.ranks.size(); ++i) {
      const auto& rank = attempt.ranks[i];
      if (rank.phase >= domain::RankPhase::finished) continue;
      const domain::LaunchId launch{id, static_cast<int>(i), rank.incarnation};
      next->emplace(launch, LaunchInfo{job.kind, job.name, domain::log_group(job.kind),
                                       domain::log_stream(job.name, launch.rank, attempt.created)});
    }
  }
  std::shared_ptr<const Snapshot> last = std::move(next);
  const std::lock_guard lock(mutex_);
  snapshot_.swap(last);  // the old one goes after the lock
}

std::optional<LaunchInfo> LiveLaunches::find(const domain::LaunchId& launch) const {
  std::shared_ptr<const Snapshot> snapshot;
  {
    const std::lock_guard lock(mutex_);
    snapshot = snapshot_;
  }
  const auto found = snapshot->find(launch);
  if (found == snapshot->end()) return std::nullopt;
  return found->second;
}

}  // namespace muster::service
