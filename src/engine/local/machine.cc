#include "engine/local/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/crypto.h"
#include "base/text.h"
#include "engine/local/probe.h"

namespace muster::engine::local {

namespace {

constexpr int kNodesMax = 250;  // one last number of 127.77.0.x each

int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Result<void> check_options(Options& options) {
  if (options.nodes < 1 || options.nodes > kNodesMax) {
    return fail(ErrorCode::invalid_argument, "nodes is " + std::to_string(options.nodes) +
                                                 ", and may be 1 to " + std::to_string(kNodesMax));
  }
  if (::access(options.runner_program.c_str(), X_OK) != 0) {
    return fail_errno("the runner program " + options.runner_program + " cannot be started");
  }
  MUSTER_CHECK(make_directories(options.data_directory, 0700));
  const auto real = [](std::string& path) -> Result<void> {
    std::error_code error;
    path = std::filesystem::canonical(path, error).string();
    return error ? fail(ErrorCode::io, path + ": " + error.message()) : Result<void>{};
  };
  MUSTER_CHECK(real(options.data_directory));
  MUSTER_CHECK(real(options.runner_program));
  if (options.runner_program.starts_with(options.data_directory + "/")) {
    return fail(ErrorCode::invalid_argument, "the programs are in the data directory (" +
                                                 options.runner_program +
                                                 "), which jobs must not see: choose another data directory");
  }
  return make_directories(options.data_directory + "/run", 0700);
}

// The built-in programs that stand beside the runner.
std::vector<std::string> programs_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto* name : {"muster-train", "muster-data"}) {
    auto path = folder + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) found.push_back(std::move(path));
  }
  return found;
}

void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

std::vector<domain::Node> cut_machine(int count) {
  const int cpus = std::max(1, processors() / count);
  const auto pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto memory =
      pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / static_cast<std::uint64_t>(count);
  std::vector<domain::Node> nodes;
  for (int k = 1; k <= count; ++k) {
    nodes.push_back({.name = "node-" + std::to_string(k),
                     .cpus = cpus,
                     .memory_bytes = memory,
                     .address = "127.77.0." + std::to_string(k),
                     .healthy = true,
                     .message = {}});
  }
  return nodes;
}

std::string cgroup_name(const std::string& data_directory) {
  return "muster-" + crypto::hex(crypto::sha256(data_directory)).substr(0, 8);
}

Result<Machine> survey(Options& options, const std::string& cgroups) {
  MUSTER_CHECK(check_options(options));
  const auto run_directory = options.data_directory + "/run";
  const auto programs = std::filesystem::path(options.runner_program).parent_path().string();
  MUSTER_TRY(auto choice, choose_user(options.user, programs));

  Machine machine;
  auto& inventory = machine.inventory;
  inventory.nodes = cut_machine(options.nodes);
  machine.cgroups = Cgroups::make(cgroups, inventory.nodes);

  NodePlan plan;
  plan.isolate = options.namespaces;
  plan.data_directory = options.data_directory;
  plan.user = choice.user;
  if (choice.user.change) plan.trials = programs_in(programs);
  plan.cgroups = machine.cgroups.process_groups(inventory.nodes.front().name);
  MUSTER_TRY(auto report, probe(options.runner_program, run_directory, plan));
  if (!report.not_startable.empty()) {
    const auto why = "user " + choice.user.name + " cannot start " + report.not_startable;
    if (options.user.empty()) {
      choice = as_root(why);
    } else {
      choice.missing = "built-in programs for jobs: " + why;
    }
  }
  machine.isolated = options.namespaces && report.error.empty();
  if (!machine.isolated) {
    machine.refusal = options.namespaces ? report.error : "they are switched off by an option";
    machine.remedy = options.namespaces ? report.remedy : "leave the option out";
    report.in_force.clear();
    report.missing = {"namespaces: " + machine.refusal + "; only muster/train and muster/data run"};
    choice.user.change = false;
    choice.missing = ::geteuid() == 0 ? "an unprivileged user for jobs: that needs namespaces" : "";
    choice.in_force = ::geteuid() == 0 ? "jobs run as root with few capabilities" : choice.in_force;
  }
  machine.user = choice.user;
  append(inventory.isolation, report.in_force);
  inventory.isolation.push_back(choice.in_force);
  append(inventory.isolation, machine.cgroups.in_force());
  append(inventory.not_isolated, report.missing);
  if (!choice.missing.empty()) inventory.not_isolated.push_back(choice.missing);
  append(inventory.not_isolated, machine.cgroups.missing());
  inventory.not_isolated.emplace_back(
      "network: jobs share the machine's; two of them cannot listen on one port of all addresses");
  return machine;
}

}  // namespace muster::engine::local
