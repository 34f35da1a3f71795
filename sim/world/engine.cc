#include "sim/world/engine.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "sim/world/store.h"

namespace muster::sim {

SimEngine::SimEngine(std::vector<domain::Node> nodes, Hooks hooks)
    : nodes_(std::move(nodes)), hooks_(std::move(hooks)) {}

domain::Node& SimEngine::node(const domain::NodeName& name) {
  const auto found =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& node) { return node.name == name; });
  MUSTER_ASSERT(found != nodes_.end());
  return *found;
}

bool SimEngine::reachable(const domain::LaunchId& id) const {
  const auto process = processes_.find(id);
  return process != processes_.end() && !parted_.contains(process->second.node);
}

Result<domain::Inventory> SimEngine::inventory() { return domain::Inventory{nodes_, {}, {}}; }

void SimEngine::check_free(const domain::NodeLaunch& launch) {
  for (const auto& [id, process] : processes_) {
    if (process.node == launch.node && process.runner->alive()) {
      hooks_.violation("oversubscription: " + to_string(launch.id) + " is launched on " + launch.node +
                       ", where " + to_string(id) + " runs");
    }
  }
}

Result<void> SimEngine::launch(const domain::GangLaunch& gang) {
  if (static_cast<int>(gang.nodes.size()) != gang.nodes.front().world) {
    hooks_.violation("half a gang: " + std::to_string(gang.nodes.size()) + " of " +
                     std::to_string(gang.nodes.front().world) + " ranks are launched");
  }
  if (auto error = hooks_.refuse(gang)) {
    hit_.insert(gang.attempt);
    return tl::unexpected(*std::move(error));
  }
  for (const auto& launch : gang.nodes) {
    if (node(launch.node).healthy) continue;
    hit_.insert(gang.attempt);
    return fail(ErrorCode::unavailable, launch.node + " is not reachable");
  }
  const auto dies_after = hooks_.dies_after(gang);
  int started = 0;
  for (const auto& launch : gang.nodes) {
    if (dies_after && started == *dies_after) throw Crash{};
    ++started;
    if (processes_.contains(launch.id)) continue;
    check_free(launch);
    auto runner = hooks_.make_runner(launch);
    processes_[launch.id] = {launch.node, runner};
    runner->start();
  }
  if (dies_after) throw Crash{};
  return {};
}

Result<void> SimEngine::stop(const domain::LaunchId& id, Millis grace) {
  if (!reachable(id)) return {};
  hooks_.after(grace, [this, id] { kill(id, "stopped by the engine"); });
  return {};
}

Result<void> SimEngine::release(const domain::LaunchId& id) {
  const auto process = processes_.find(id);
  if (process == processes_.end()) return {};
  if (parted_.contains(process->second.node))
    return fail(ErrorCode::unavailable, process->second.node + " is not reachable");
  process->second.runner->kill();
  processes_.erase(process);
  return {};
}

Result<std::vector<domain::Observation>> SimEngine::observe() {
  std::vector<domain::Observation> result;
  for (const auto& [id, process] : processes_) {
    if (!parted_.contains(process.node)) result.push_back({id, process.node, process.runner->alive()});
  }
  return result;
}

void SimEngine::kill(const domain::LaunchId& id, const std::string& how) {
  const auto process = processes_.find(id);
  if (process == processes_.end() || !process->second.runner->alive()) return;
  hooks_.history("runner " + to_string(id) + " dies: " + how);
  hit_.insert(id.attempt);
  process->second.runner->kill();
  if (reachable(id)) hooks_.exited({id, how});
}

void SimEngine::hang(const domain::LaunchId& id) {
  const auto process = processes_.find(id);
  if (process == processes_.end()) return;
  hit_.insert(id.attempt);
  process->second.runner->hang();
}

void SimEngine::ended(const domain::LaunchId& id) {
  if (reachable(id)) hooks_.exited({id, "exited"});
}

void SimEngine::node_dies(const domain::NodeName& name) {
  node(name).healthy = false;
  node(name).message = "down";
  std::erase_if(processes_, [&](auto& entry) {
    if (entry.second.node != name) return false;
    entry.second.runner->kill();
    hit_.insert(entry.first.attempt);
    return true;
  });
}

void SimEngine::node_parts(const domain::NodeName& name) {
  node(name).healthy = false;
  node(name).message = "unreachable";
  parted_.insert(name);
  for (const auto& [id, process] : processes_) {
    if (process.node == name) hit_.insert(id.attempt);
  }
}

void SimEngine::node_returns(const domain::NodeName& name) {
  node(name).healthy = true;
  node(name).message.clear();
  parted_.erase(name);
}

}  // namespace muster::sim
