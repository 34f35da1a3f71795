#include "engine/local/doctor.h"

#include <unistd.h>

#include "base/text.h"
#include "engine/local/machine.h"

namespace muster::engine::local {

namespace {

Check namespaces(const Machine& machine) {
  if (machine.isolated)
    return {.name = "namespaces", .message = "nodes are isolated: muster/host images can run"};
  return {.name = "namespaces",
          .state = Check::State::warn,
          .message = machine.refusal + ": only muster/train and muster/data run",
          .remedy = machine.remedy};
}

Check nodes(const Machine& machine) {
  const auto& node = machine.inventory.nodes.front();
  return {.name = "nodes",
          .message = std::to_string(machine.inventory.nodes.size()) + " with " + std::to_string(node.cpus) +
                     (node.cpus == 1 ? " CPU and " : " CPUs and ") + format_bytes(node.memory_bytes) +
                     " each"};
}

// The part of a line before its first colon names what is missing; the rest says why.
Check missing(const std::string& line) {
  const auto colon = line.find(": ");
  Check check{.name = line.substr(0, colon), .state = Check::State::warn};
  check.message = colon == std::string::npos ? "not in force" : line.substr(colon + 2);
  if (check.name == "an unprivileged user for jobs") {
    check.remedy =
        "useradd --system muster, and programs that others may read and execute, or [local] user = NAME";
  } else if (check.name == "built-in programs for jobs") {
    check.remedy =
        "put the programs and their libraries where others may read them, or name another [local] user";
  } else if (check.name == "network") {
    check.state = Check::State::note;
  } else if (check.name.find("of nodes") != std::string::npos) {
    check.remedy = "run musterd as root or as a systemd user service, so that it may make control groups";
  }
  return check;
}

}  // namespace

std::vector<Check> doctor(const Options& given) {
  auto options = given;
  const auto machine = survey(options, "muster-doctor-" + std::to_string(::getpid()));
  if (!machine) {
    return {{.name = "local engine",
             .state = Check::State::fail,
             .message = machine.error().message,
             .remedy = "correct that, then run muster doctor again"}};
  }
  machine->cgroups.remove();
  std::vector<Check> checks{namespaces(*machine), nodes(*machine)};
  checks.push_back({.name = "isolation", .message = join(machine->inventory.isolation, ", ")});
  for (const auto& line : machine->inventory.not_isolated) {
    if (!line.starts_with("namespaces:")) checks.push_back(missing(line));
  }
  return checks;
}

}  // namespace muster::engine::local
