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

constexpr int kNodesMax = 250;  // a last number of the network each

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

// What jobs start: a shell, and the built-in programs that stand beside the runner.
std::vector<std::string> programs_in(const std::string& folder) {
  std::vector<std::string> found{"/bin/sh"};
  for (const auto* name : {"muster-train", "muster-data"}) {
    auto path = folder + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) found.push_back(std::move(path));
  }
  return found;
}

void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::string words_about_files(const JobUser& user, bool root) {
  if (user.change)
    return "Jobs run as the user " + user.name +
           ": your files are as safe from them as from any other user of this machine";
  return std::string("Jobs run as ") +
         (root ? "root: they can change the files of this machine"
               : user.name + ", who started the service: they can change all files of " + user.name) +
         ". Run only code that you trust";
}

// What was found, for people who need not know what a namespace is.
std::vector<std::string> words(const Machine& machine, bool root, bool memory_limited,
                               const std::vector<std::string>& missing) {
  std::vector<std::string> out{words_about_files(machine.user, root)};
  out.emplace_back(
      machine.isolated
          ? "Each node of a job has its own processes, host name and /opt/ml, and does not see the "
            "service's keys and data"
          : "Nodes are not kept apart here, so only muster/train and muster/data run, no program of "
            "yours");
  out.emplace_back(memory_limited ? "A node gets at most its share of this machine's memory"
                                  : "A job may use up this machine's memory: no limit can be set here");
  out.emplace_back("/tmp and the network are this machine's: jobs share them with everything that runs here");
  for (const auto& line : missing) {
    if (!line.starts_with(kLimitsMissing)) out.push_back("Not here: " + line);
  }
  return out;
}

}  // namespace

std::string loopback_network(const std::string& data_directory) {
  const auto hash = crypto::sha256(data_directory);
  return "127." + std::to_string(64 + hash[0] % 64) + "." + std::to_string(hash[1]) + ".";
}

std::vector<domain::Node> cut_machine(int count, const std::string& network) {
  const int cpus = std::max(1, processors() / count);
  const auto pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto memory =
      pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / static_cast<std::uint64_t>(count);
  std::vector<domain::Node> nodes;
  for (int k = 1; k <= count; ++k) {
    nodes.push_back({.name = "node-" + std::to_string(k),
                     .cpus = cpus,
                     .memory_bytes = memory,
                     .address = network + std::to_string(k),
                     .healthy = true,
                     .message = {}});
  }
  return nodes;
}

std::string cgroup_name(const std::string& data_directory) {
  return "muster-" + crypto::hex(crypto::sha256(data_directory)).substr(0, 8);
}

Machine judge(Findings findings) {
  auto& [root, namespaces, user_named, choice, report, limits, no_limits] = findings;
  Machine machine;
  machine.isolated = namespaces && report.error.empty();
  auto& said = machine.inventory.isolation;
  auto& not_said = machine.inventory.not_isolated;
  if (!machine.isolated) {
    machine.refusal = namespaces ? report.error : "they are switched off by an option";
    machine.remedy = namespaces ? report.remedy : "leave the option out";
    not_said.push_back("namespaces: " + machine.refusal + "; only muster/train and muster/data run");
    if (root && choice.user.change) choice = as_root("that needs namespaces");
  } else {
    said = report.in_force;
    if (!report.not_startable.empty()) {
      const auto why = "user " + choice.user.name + " cannot start " + report.not_startable;
      if (user_named) choice.missing = "built-in programs for jobs: " + why;
      if (!user_named) choice = as_root(why);
    }
    if (choice.user.change) machine.reach = report.reach;
  }
  machine.user = choice.user;
  said.push_back(choice.in_force);
  if (!machine.reach.empty()) {
    said.push_back("below folders that are closed to others, jobs see only " + join(machine.reach, ", "));
  }
  append(not_said, report.missing);
  if (!root) {
    const auto& name = choice.user.name;
    not_said.push_back("files: jobs run as " + name + ", who started the service, and read and write what " +
                       name + " may" + (machine.isolated ? ", but for this data directory" : "") +
                       "; a service started as root runs them as another user");
  }
  if (!choice.missing.empty()) not_said.push_back(choice.missing);
  const bool entered = std::none_of(report.missing.begin(), report.missing.end(),
                                    [](const auto& line) { return line.starts_with(kLimitsMissing); });
  const bool memory_limited = entered && std::any_of(limits.begin(), limits.end(), [](const auto& line) {
                                return line.starts_with(kMemoryLimit);
                              });
  machine.inventory.in_words = words(machine, root, memory_limited, report.missing);
  if (entered) append(said, limits);
  append(not_said, no_limits);
  not_said.emplace_back("/tmp: jobs share the machine's; they see what others leave there");
  not_said.emplace_back(
      "network: jobs share the machine's; two of them cannot listen on one port of all addresses");
  return machine;
}

Result<Machine> survey(Options& options, const std::string& cgroups) {
  MUSTER_CHECK(check_options(options));
  MUSTER_TRY(auto choice, choose_user(options.user));
  auto nodes = cut_machine(options.nodes, loopback_network(options.data_directory));
  auto groups = Cgroups::make(cgroups, nodes);

  NodePlan plan;
  plan.isolate = options.namespaces;
  plan.data_directory = options.data_directory;
  plan.user = choice.user;
  plan.trials = programs_in(std::filesystem::path(options.runner_program).parent_path().string());
  plan.cgroups = groups.process_groups(nodes.front().name);
  MUSTER_TRY(auto report, probe(options.runner_program, options.data_directory + "/run", plan));
  auto machine = judge({.root = ::geteuid() == 0,
                        .namespaces = options.namespaces,
                        .user_named = !options.user.empty(),
                        .choice = std::move(choice),
                        .report = std::move(report),
                        .limits = groups.in_force(),
                        .no_limits = groups.missing()});
  machine.inventory.nodes = std::move(nodes);
  machine.cgroups = std::move(groups);
  return machine;
}

}  // namespace muster::engine::local
