// The engine of the simulation: nodes, and runner processes on them. It knows the truth, so the checks about
// double booking and half gangs are made here, at the moment of the launch. One thread, that of its world.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ports/engine.h"
#include "sim/world/runner.h"

namespace muster::sim {

class SimEngine final : public ports::Engine {
 public:
  struct Hooks {
    // nullopt: succeeds.
    std::function<std::optional<Error>(const domain::GangLaunch&)> refuse = [](const auto&) {
      return std::nullopt;
    };
    // How many ranks start before the control process dies; nullopt: it lives.
    std::function<std::optional<int>(const domain::GangLaunch&)> dies_after = [](const auto&) {
      return std::nullopt;
    };
    std::function<std::shared_ptr<Runner>(const domain::NodeLaunch&)> make_runner;
    std::function<void(const ports::NodeExit&)> exited = [](const auto&) {};  // to the control plane
    std::function<void(const std::string&)> violation;
    std::function<void(const std::string&)> history;
    std::function<void(Millis, std::function<void()>)> after;
  };

  SimEngine(std::vector<domain::Node> nodes, Hooks hooks);

  void on_exit(std::function<void(const ports::NodeExit&)>) override {}  // the world delivers exits
  Result<domain::Inventory> inventory() override;
  Result<void> launch(const domain::GangLaunch& gang) override;
  Result<void> stop(const domain::LaunchId& id, Millis grace) override;
  Result<void> release(const domain::LaunchId& id) override;
  Result<std::vector<domain::Observation>> observe() override;

  // ---- what the world does to it ----
  void kill(const domain::LaunchId& id, const std::string& how);
  void hang(const domain::LaunchId& id);
  void ended(const domain::LaunchId& id);  // the process has left on its own
  void node_dies(const domain::NodeName& node);
  void node_parts(const domain::NodeName& node);
  void node_returns(const domain::NodeName& node);

  // ---- the truth ----
  struct Process {
    domain::NodeName node;
    std::shared_ptr<Runner> runner;
  };
  const std::map<domain::LaunchId, Process>& processes() const { return processes_; }
  bool reachable(const domain::LaunchId& id) const;
  const std::vector<domain::Node>& nodes() const { return nodes_; }
  // Attempts that an infrastructure fault has hit.
  const std::set<domain::AttemptId>& hit() const { return hit_; }

 private:
  domain::Node& node(const domain::NodeName& name);
  void check_free(const domain::NodeLaunch& launch);

  std::vector<domain::Node> nodes_;
  std::set<domain::NodeName> parted_;
  std::map<domain::LaunchId, Process> processes_;
  std::set<domain::AttemptId> hit_;
  Hooks hooks_;
};

}  // namespace muster::sim
