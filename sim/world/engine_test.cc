// The contract suite on the simulated engine, in virtual time. Its runners hear nothing from a control plane:
// a stop ends them when the grace is over.
#include "sim/world/engine.h"

#include <memory>

#include "engine/contract/engine_contract.h"
#include "engine/contract/gang.h"
#include "sim/world/timeline.h"

namespace muster::engine::contract {
namespace {

// A world in which no message arrives.
class SilentWorld final : public sim::RunnerWorld {
 public:
  void after(Millis, std::function<void()>) override {}
  void send_report(const domain::LaunchId&, const domain::RankReport&, Answer) override {}
  void send_poll(const domain::LaunchId&, std::uint64_t, Millis, service::Service::DesiredDone) override {}
  void command_started(const domain::LaunchId&) override {}
  void command_ended(const domain::LaunchId&, const domain::RankExit&) override {}
  void protocol_violated(const domain::LaunchId&, const std::string&) override {}
  void process_ended(const domain::LaunchId&) override {}
};

class SimSubject final : public Subject {
 public:
  ports::Engine& engine() override { return engine_; }
  domain::GangLaunch gang(domain::AttemptId attempt, int ranks, Conduct conduct) override {
    conduct_ = conduct;
    return gang_on_first_nodes(attempt, ranks);
  }
  domain::GangLaunch broken_gang(domain::AttemptId attempt) override {
    engine_.node_parts("node-3");
    return gang(attempt, 3, Conduct::stays);
  }
  void kill_runner(const domain::LaunchId& id) override { engine_.kill(id, "killed"); }
  int exits(const domain::LaunchId& id) override { return exits_[id]; }
  bool wait(const std::function<bool()>& done) override {
    while (!done() && !timeline_.empty()) timeline_.step();
    return done();
  }
  void restart() override {}  // the engine is the world: it outlives the control plane

 private:
  static std::vector<domain::Node> nodes() {
    std::vector<domain::Node> nodes;
    for (int k = 1; k <= 3; ++k) {
      nodes.push_back({.name = "node-" + std::to_string(k), .cpus = 4, .memory_bytes = 1U << 30});
    }
    return nodes;
  }
  sim::SimEngine::Hooks hooks() {
    sim::SimEngine::Hooks hooks;
    hooks.make_runner = [this](const domain::NodeLaunch& launch) {
      auto runner = std::make_shared<sim::Runner>(world_, launch, sim::Program{});
      if (conduct_ == Conduct::ends || conduct_ == Conduct::fails) {
        timeline_.after(Millis{1}, [this, runner, id = launch.id] {
          runner->kill();
          engine_.ended(id);
        });
      }
      return runner;
    };
    hooks.exited = [this](const ports::NodeExit& exit) { ++exits_[exit.id]; };
    hooks.violation = [](const std::string& what) { ADD_FAILURE() << what; };
    hooks.history = [](const std::string&) {};
    hooks.after = [this](Millis delay, std::function<void()> run) { timeline_.after(delay, std::move(run)); };
    return hooks;
  }

  sim::Timeline timeline_;
  SilentWorld world_;
  Conduct conduct_ = Conduct::stays;
  std::map<domain::LaunchId, int> exits_;
  sim::SimEngine engine_{nodes(), hooks()};
};

INSTANTIATE_TEST_SUITE_P(Simulated, EngineContract,
                         testing::Values(MakeSubject([] { return std::make_unique<SimSubject>(); })));

}  // namespace
}  // namespace muster::engine::contract
