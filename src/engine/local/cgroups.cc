#include "engine/local/cgroups.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "engine/local/run_folder.h"

namespace muster::engine::local {

namespace {

constexpr std::string_view kControllers[] = {"memory", "cpu", "pids"};
constexpr int kProcessesMax = 16'384;  // of one node

// Where a hierarchy is mounted, and our own group in it.
struct Place {
  bool unified = false;
  std::vector<std::string> controllers;  // version 1
  std::string own;                       // folder of our own group
  std::string mount;
};

std::vector<std::string> words(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (const auto part : split(text, separator)) {
    if (!part.empty()) out.emplace_back(part);
  }
  return out;
}

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// "4:memory:/a/b" and "0::/a/b": our group in the hierarchy of a controller ("" is version 2).
std::optional<std::string> own_group(std::string_view self, std::string_view controller) {
  for (const auto line : split(self, '\n')) {
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const auto names = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? names.empty() : contains(words(names, ','), controller)) {
      return std::string(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

// One line of mountinfo: id parent device ROOT MOUNT options [...] - TYPE source SUPEROPTIONS.
std::optional<Place> parse_mount(std::string_view line, std::string_view self) {
  const auto dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  const auto left = words(line.substr(0, dash), ' ');
  const auto right = words(line.substr(dash + 3), ' ');
  if (left.size() < 5 || right.size() < 3 || !right[0].starts_with("cgroup")) return std::nullopt;
  Place place;
  place.unified = right[0] == "cgroup2";
  if (!place.unified) {
    for (auto& option : words(right[2], ',')) {
      if (std::find(std::begin(kControllers), std::end(kControllers), option) != std::end(kControllers)) {
        place.controllers.push_back(option);
      }
    }
    if (place.controllers.empty()) return std::nullopt;
  }
  auto group = own_group(self, place.unified ? std::string_view{} : std::string_view(place.controllers[0]));
  if (!group) return std::nullopt;
  const auto& root = left[3];  // the part of the hierarchy that this mount shows
  if (root != "/" && group->starts_with(root)) group->erase(0, root.size());
  place.mount = left[4];
  place.own = place.mount + (*group == "/" ? "" : *group);
  return place;
}

std::vector<Place> find_places() {
  const auto self = read_file("/proc/self/cgroup").value_or("");
  const auto mounts = read_file("/proc/self/mountinfo").value_or("");
  std::vector<Place> places;
  for (const auto line : split(mounts, '\n')) {
    if (auto place = parse_mount(line, self)) places.push_back(*std::move(place));
  }
  return places;
}

Result<void> put(const std::string& path, const std::string& value) {
  MUSTER_TRY(const auto fd, open_file(path, O_WRONLY));
  return write_all(fd.get(), value).map_error([&](Error error) { return error.with_context(path); });
}

Result<void> make_group(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return fail_errno("mkdir " + path);
}

// Version 2 passes a controller on only where the group above says so, and a group with processes of its own
// may not say it: then the group above ours is tried, as it is ours to use under a systemd user session.
Result<std::string> make_unified(const Place& place, const std::string& name, std::string_view controller) {
  const auto enable = "+" + std::string(controller);
  auto above = place.own;
  for (int level = 0; level < 2; ++level) {
    const auto passed_on = read_file(above + "/cgroup.subtree_control").value_or("");
    if (contains(words(trim(passed_on), ' '), controller) || put(above + "/cgroup.subtree_control", enable)) {
      const auto folder = above + "/" + name;
      MUSTER_CHECK(make_group(folder));
      MUSTER_CHECK(put(folder + "/cgroup.subtree_control", enable));
      return folder;
    }
    if (above == place.mount) break;
    above.erase(above.rfind('/'));
  }
  return fail(ErrorCode::permission_denied, place.own + " does not pass the controller on");
}

Result<std::string> make_folder(const Place& place, const std::string& name, std::string_view controller) {
  if (place.unified) return make_unified(place, name, controller);
  const auto folder = place.own + "/" + name;
  MUSTER_CHECK(make_group(folder));
  return folder;
}

Result<void> set_limit(const std::string& group, bool unified, std::string_view controller,
                       const domain::Node& node) {
  if (controller == "memory") {
    return put(group + (unified ? "/memory.max" : "/memory.limit_in_bytes"),
               std::to_string(node.memory_bytes));
  }
  if (controller == "pids") return put(group + "/pids.max", std::to_string(kProcessesMax));
  if (unified) return put(group + "/cpu.weight", std::to_string(std::min(10'000, 100 * node.cpus)));
  return put(group + "/cpu.shares", std::to_string(1'024 * node.cpus));
}

Result<std::string> limit_all(const Place& place, const std::string& name, std::string_view controller,
                              const std::vector<domain::Node>& nodes) {
  MUSTER_TRY(auto folder, make_folder(place, name, controller));
  for (const auto& node : nodes) {
    MUSTER_CHECK(make_group(folder + "/" + node.name));
    MUSTER_CHECK(set_limit(folder + "/" + node.name, place.unified, controller, node));
  }
  return folder;
}

std::string what(std::string_view controller) {
  if (controller == "memory") return kMemoryLimit;
  if (controller == "cpu") return "processor shares";
  return "limit of processes";
}

// A group and those of its nodes. Those with processes stay: rmdir refuses.
void remove_groups(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) ::rmdir(entry.path().c_str());
  }
  ::rmdir(folder.c_str());
}

}  // namespace

Cgroups Cgroups::make(const std::string& name, const std::vector<domain::Node>& nodes) {
  Cgroups groups;
  for (const auto& node : nodes) groups.nodes_.push_back(node.name);
  const auto places = find_places();
  for (const auto controller : kControllers) {
    auto place = std::find_if(places.begin(), places.end(), [&](const Place& candidate) {
      return contains(candidate.controllers, controller);
    });
    if (place == places.end()) {
      place = std::find_if(places.begin(), places.end(),
                           [](const Place& candidate) { return candidate.unified; });
    }
    if (place == places.end()) {
      groups.missing_.push_back(what(controller) + " of nodes: no control group hierarchy has it");
      continue;
    }
    const auto folder = limit_all(*place, name, controller, nodes);
    if (!folder) {
      groups.missing_.push_back(what(controller) + " of nodes: " + folder.error().message);
      continue;
    }
    groups.in_force_.push_back(what(controller) + (place->unified ? " (cgroup v2)" : " (cgroup v1)"));
    const bool known = std::any_of(groups.hierarchies_.begin(), groups.hierarchies_.end(),
                                   [&](const Hierarchy& other) { return other.folder == *folder; });
    if (!known) groups.hierarchies_.push_back({place->unified, *folder});
  }
  return groups;
}

void Cgroups::remove() const {
  for (const auto& hierarchy : hierarchies_) remove_groups(hierarchy.folder);
}

Result<void> Cgroups::note(const std::string& run_directory) const {
  std::string text;
  for (const auto& hierarchy : hierarchies_) text += hierarchy.folder + "\n";
  const auto path = run_directory + "/cgroups";
  if (const auto noted = read_file(path, 1 << 16); noted && *noted == text) return {};  // needs no room
  return put_file(path, text, 0600);
}

void remove_cgroups(const std::string& run_directory) {
  const auto noted = read_file(run_directory + "/cgroups", 1 << 16).value_or("");
  for (const auto& folder : words(noted, '\n')) remove_groups(folder);
}

std::vector<std::string> Cgroups::process_groups(const std::string& node) const {
  std::vector<std::string> out;
  for (const auto& hierarchy : hierarchies_) {
    if (hierarchy.unified) out.push_back(hierarchy.folder + "/" + node);
  }
  return out;
}

std::vector<std::string> Cgroups::thread_groups(const std::string& node) const {
  std::vector<std::string> out;
  for (const auto& hierarchy : hierarchies_) {
    if (!hierarchy.unified) out.push_back(hierarchy.folder + "/" + node);
  }
  return out;
}

Launcher::Launcher(std::vector<std::string> groups)
    : thread_([this, groups = std::move(groups)] { loop(groups); }) {}

Launcher::~Launcher() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void Launcher::run(const std::function<void()>& work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !busy_; });
  busy_ = true;
  work_ = &work;
  changed_.notify_all();
  changed_.wait(lock, [&] { return work_ == nullptr; });
  busy_ = false;
  changed_.notify_all();
}

std::string Launcher::refused() {
  run([] {});
  const std::lock_guard lock(mutex_);
  return refused_;
}

void Launcher::loop(const std::vector<std::string>& groups) {
  std::string refused;
  for (const auto& group : groups) {
    // "0" is the writing thread itself.
    if (const auto entered = put(group + "/tasks", "0"); !entered) refused = entered.error().message;
  }
  std::unique_lock lock(mutex_);
  refused_ = refused;
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || work_ != nullptr; });
    if (work_ == nullptr) return;
    const auto* work = work_;
    lock.unlock();
    (*work)();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace muster::engine::local
