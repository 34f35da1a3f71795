#include "engine/local/local_engine.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "base/text.h"
#include "engine/local/cgroups.h"
#include "engine/local/handshake.h"
#include "engine/local/machine.h"
#include "engine/local/probe.h"
#include "engine/local/run_folder.h"
#include "engine/local/spawn.h"
#include "engine/local/users.h"
#include "engine/local/watcher.h"
#include "wire/runner/messages.h"

namespace muster::engine::local {

namespace {

constexpr Millis kNodeMax{10'000};   // for making a node
constexpr Millis kSettleMax{5'000};  // how long release() waits

// One rank between its folder and its report.
struct Starting {
  domain::LaunchId id;
  domain::NodeName node;
  std::string folder;
  StartedRunner runner;
  UniqueFd process;  // of the runner, once it has reported
};

// What an earlier musterd did not finish deleting.
void sweep(const std::string& run_directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_directory, error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(".trash-") || name.starts_with(".probe-")) {
      static_cast<void>(remove_tree(entry.path().string()));  // tried again at the next start
    }
  }
}

}  // namespace

class LocalEngine::Impl {
 public:
  Impl(Options options, Machine machine)
      : options_(std::move(options)),
        machine_(std::move(machine)),
        run_directory_(options_.data_directory + "/run"),
        watcher_({.run_directory = run_directory_,
                  .runner_program = options_.runner_program,
                  .drain_max = options_.drain_max}) {
    for (const auto& node : machine_.inventory.nodes) {
      const auto groups = machine_.cgroups.thread_groups(node.name);
      if (groups.empty()) continue;
      auto launcher = std::make_unique<Launcher>(groups);
      if (const auto refused = launcher->refused(); !refused.empty()) {
        const auto line = "limits of " + node.name + ": " + refused;
        machine_.inventory.not_isolated.push_back(line);
        machine_.inventory.in_words.push_back("Not here: " + line);
      }
      launchers_.emplace(node.name, std::move(launcher));
    }
    watcher_.adopt();
  }

  ~Impl() {
    launchers_.clear();         // their threads are in the groups
    machine_.cgroups.remove();  // where jobs go on, kill_all() or the next engine does it
  }

  Watcher& watcher() { return watcher_; }
  const domain::Inventory& inventory() const { return machine_.inventory; }
  Result<void> launch(const domain::GangLaunch& gang);
  Result<void> release(const domain::LaunchId& id);

 private:
  Result<void> check(const domain::GangLaunch& gang) const;
  Result<const domain::Node*> find_node(const std::string& name) const;
  Result<std::vector<domain::Host>> hosts_of(const domain::GangLaunch& gang) const;
  domain::NodeLaunch complete(const domain::NodeLaunch& launch, const std::vector<domain::Host>& hosts) const;
  std::string notice(const domain::NodeLaunch& launch, const domain::Node& node) const;
  Result<void> fill_folder(const std::string& folder, const domain::NodeLaunch& launch,
                           const std::string& token) const;
  Result<std::optional<Starting>> start(const domain::NodeLaunch& launch, const std::string& token);
  static Result<void> await(std::vector<Starting>& started);
  static void undo(const std::vector<Starting>& started);

  const Options options_;
  Machine machine_;
  const std::string run_directory_;
  std::map<std::string, std::unique_ptr<Launcher>> launchers_;
  Watcher watcher_;
};

Result<const domain::Node*> LocalEngine::Impl::find_node(const std::string& name) const {
  const auto& nodes = machine_.inventory.nodes;
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) { return node.name == name; });
  if (found != nodes.end()) return &*found;
  return fail(ErrorCode::invalid_argument, "there is no node '" + name + "': this engine has " +
                                               nodes.front().name + " to " + nodes.back().name);
}

Result<void> LocalEngine::Impl::check(const domain::GangLaunch& gang) const {
  if (gang.nodes.empty() || gang.nodes.size() != gang.runner_tokens.size()) {
    return fail(ErrorCode::invalid_argument, "a gang of " + std::to_string(gang.nodes.size()) +
                                                 " ranks with " + std::to_string(gang.runner_tokens.size()) +
                                                 " runner tokens");
  }
  for (const auto& launch : gang.nodes) {
    MUSTER_CHECK(find_node(launch.node));
    if (machine_.isolated || launch.workload.program != "host") continue;
    return fail(ErrorCode::unsupported,
                "image '" + launch.workload.image +
                    "' runs a program of its own, for which this machine's namespaces "
                    "are needed: " +
                    machine_.refusal + ". Only muster/train and muster/data run here");
  }
  return {};
}

Result<std::vector<domain::Host>> LocalEngine::Impl::hosts_of(const domain::GangLaunch& gang) const {
  std::vector<domain::Host> hosts;
  for (const auto& launch : gang.nodes) {
    MUSTER_TRY(const auto* node, find_node(launch.node));
    hosts.push_back({.name = "algo-" + std::to_string(launch.id.rank + 1), .address = node->address});
  }
  return hosts;
}

std::string LocalEngine::Impl::notice(const domain::NodeLaunch& launch, const domain::Node& node) const {
  std::string text = launch.notice;
  if (!launch.workload.instance_type.empty()) {
    if (!text.empty()) text += ' ';
    text += launch.workload.instance_type + " is rehearsed on local node " + node.name + ": " +
            std::to_string(node.cpus) + (node.cpus == 1 ? " CPU, " : " CPUs, ") +
            format_bytes(node.memory_bytes) + ".";
  }
  return text;
}

domain::NodeLaunch LocalEngine::Impl::complete(const domain::NodeLaunch& launch,
                                               const std::vector<domain::Host>& hosts) const {
  const auto& node = **find_node(launch.node);
  auto full = launch;
  full.endpoint_url = options_.endpoint_url;
  full.address = node.address;
  full.interface = "lo";
  // Not the node's own address: botocore before 1.33 takes credentials from 127.0.0.1 only. The port is the
  // runner's own and the token the job's, so sharing the address gives nothing away.
  full.credentials_uri = "http://127.0.0.1:0/credentials";
  full.hosts = hosts;
  full.notice = notice(launch, node);
  return full;
}

Result<void> LocalEngine::Impl::fill_folder(const std::string& folder, const domain::NodeLaunch& launch,
                                            const std::string& token) const {
  MUSTER_CHECK(put_file(folder + "/launch.json", wire::encode(launch), 0600));
  MUSTER_CHECK(put_file(folder + "/token", token, 0600));
  std::vector<std::string> names;
  for (const auto& host : launch.hosts) names.push_back(host.address + " " + host.name);
  NodePlan plan;
  plan.isolate = machine_.isolated;
  plan.data_directory = options_.data_directory;
  plan.host_name = "algo-" + std::to_string(launch.id.rank + 1);
  plan.user = machine_.user;
  plan.reach = machine_.reach;
  plan.cgroups = machine_.cgroups.process_groups(launch.node);
  return furnish_folder(folder, plan, hosts_file(names));
}

// nullopt: it runs already, or has run.
Result<std::optional<Starting>> LocalEngine::Impl::start(const domain::NodeLaunch& launch,
                                                         const std::string& token) {
  if (watcher_.knows(launch.id)) return std::nullopt;
  const auto folder = run_directory_ + "/" + to_string(launch.id);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno("mkdir " + folder);
  auto lock = take_lock(folder);
  if (!lock) {
    if (lock.error().code != ErrorCode::failed_precondition) return tl::unexpected(std::move(lock).error());
    // Not known, yet alive: another call starts it just now, or one that failed is being undone.
    return fail(ErrorCode::unavailable, to_string(launch.id) + " is being started or ended: try again");
  }
  // The watcher knows all that have run: a number left here is of one that was undone.
  for (const auto* name : {"/pid", "/init", "/exit"}) ::unlink((folder + name).c_str());
  MUSTER_CHECK(fill_folder(folder, launch, token));
  Result<StartedRunner> runner;
  const auto spawn_it = [&] { runner = start_runner(options_.runner_program, folder, *std::move(lock)); };
  if (const auto launcher = launchers_.find(launch.node); launcher != launchers_.end()) {
    launcher->second->run(spawn_it);
  } else {
    spawn_it();
  }
  if (!runner) return tl::unexpected(std::move(runner).error());
  return Starting{.id = launch.id, .node = launch.node, .folder = folder, .runner = *std::move(runner)};
}

Result<void> LocalEngine::Impl::await(std::vector<Starting>& started) {
  for (auto& rank : started) {
    MUSTER_TRY(const auto report, await_report(rank.runner, rank.folder, kNodeMax));
    if (!report.error.empty()) {
      return fail(ErrorCode::unavailable, "the node of " + to_string(rank.id) +
                                              " could not be made: " + report.error +
                                              (report.remedy.empty() ? "" : ". Try: " + report.remedy));
    }
    MUSTER_TRY(const auto process, process_ref(rank.runner.pid));
    MUSTER_TRY(rank.process, open_process(process));
  }
  return {};
}

void LocalEngine::Impl::undo(const std::vector<Starting>& started) {
  for (const auto& rank : started) {
    end_child(rank.runner.pid);
    for (int i = 0; i < 1000 && is_occupied(rank.folder); ++i) std::this_thread::sleep_for(Millis{1});
    // If something of it stays, the next launch of this id finds a folder that was never started.
    static_cast<void>(remove_tree(rank.folder));
  }
}

Result<void> LocalEngine::Impl::launch(const domain::GangLaunch& gang) {
  MUSTER_CHECK(check(gang));
  MUSTER_TRY(const auto hosts, hosts_of(gang));
  std::vector<Starting> started;
  const auto start_all = [&]() -> Result<void> {
    for (std::size_t rank = 0; rank < gang.nodes.size(); ++rank) {
      MUSTER_TRY(auto one, start(complete(gang.nodes[rank], hosts), gang.runner_tokens[rank]));
      if (one) started.push_back(*std::move(one));
    }
    return await(started);
  };
  if (auto done = start_all(); !done) {
    undo(started);
    return done;
  }
  for (auto& rank : started) watcher_.add(rank.id, rank.node, std::move(rank.process));
  return {};
}

Result<void> LocalEngine::Impl::release(const domain::LaunchId& id) {
  MUSTER_CHECK(watcher_.stop(id, Millis{0}));
  MUSTER_CHECK(watcher_.settle(id, kSettleMax));
  const auto folder = run_directory_ + "/" + to_string(id);
  const auto trash = run_directory_ + "/.trash-" + to_string(id);
  if (::rename(folder.c_str(), trash.c_str()) != 0 && errno != ENOENT) return fail_errno("rename " + folder);
  MUSTER_CHECK(remove_tree(trash));
  watcher_.forget(id);
  return {};
}

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(Options options) {
  MUSTER_TRY(auto machine, survey(options, cgroup_name(options.data_directory)));
  sweep(options.data_directory + "/run");
  MUSTER_CHECK(machine.cgroups.note(options.data_directory + "/run"));
  return std::unique_ptr<LocalEngine>(
      new LocalEngine(std::make_unique<Impl>(std::move(options), std::move(machine))));
}

LocalEngine::LocalEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalEngine::~LocalEngine() = default;

void LocalEngine::on_exit(std::function<void(const ports::NodeExit&)> handler) {
  impl_->watcher().start(std::move(handler));
}
Result<domain::Inventory> LocalEngine::inventory() { return impl_->inventory(); }
Result<void> LocalEngine::launch(const domain::GangLaunch& gang) { return impl_->launch(gang); }
Result<void> LocalEngine::stop(const domain::LaunchId& id, Millis grace) {
  return impl_->watcher().stop(id, grace);
}
Result<void> LocalEngine::release(const domain::LaunchId& id) { return impl_->release(id); }
Result<std::vector<domain::Observation>> LocalEngine::observe() { return impl_->watcher().observe(); }

}  // namespace muster::engine::local
