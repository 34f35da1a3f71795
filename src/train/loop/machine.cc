#include "train/loop/machine.h"

#include <sched.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/text.h"
#include "train/tensor.h"

namespace muster::train {
namespace {

const std::string kCgroups = "/sys/fs/cgroup";

struct Affinity {
  int count = 1;
  std::string mask;  // one character a core
};

Affinity affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  Affinity result;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return result;
  result.count = std::max(1, CPU_COUNT(&set));
  for (int core = 0; core < CPU_SETSIZE; ++core) result.mask += CPU_ISSET(core, &set) ? '1' : '0';
  return result;
}

// The same for all processes of a running machine, in whatever container or virtual node.
std::string machine_id() {
  if (const auto boot = read_file("/proc/sys/kernel/random/boot_id", 4096)) return std::string(trim(*boot));
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

struct CgroupValue {
  std::string path;  // of the group, as this process sees it
  std::string text;
};

// The text of `file` in this process's cgroup (v2) and in those above it, as far as they have one.
std::vector<CgroupValue> cgroup_values(const std::string& file) {
  std::vector<CgroupValue> values;
  const auto groups = read_file("/proc/self/cgroup", 1 << 16);
  if (!groups) return values;
  for (const auto line : split(*groups, '\n')) {
    if (!line.starts_with("0::/")) continue;
    for (std::string path(line.substr(3)); !path.empty(); path = path.substr(0, path.rfind('/'))) {
      if (const auto text = read_file(kCgroups + path + "/" + file, 4096))
        values.push_back({path, std::string(trim(*text))});
    }
  }
  return values;
}

// Cores that the quotas allow; 0: no limit.
int quota_cores() {
  double smallest = 0;
  for (const CgroupValue& value : cgroup_values("cpu.max")) {
    const auto parts = split(value.text, ' ');
    const auto quota = parts.size() == 2 ? parse_double(parts[0]) : std::nullopt;
    const auto period = parts.size() == 2 ? parse_double(parts[1]) : std::nullopt;
    if (!quota || !period || *period <= 0) continue;
    const double cores = *quota / *period;
    smallest = smallest > 0 ? std::min(smallest, cores) : cores;
  }
  return static_cast<int>(std::ceil(smallest));
}

std::string cpu_model() {
  // /proc files have no size: read_file reads to the end all the same.
  const auto text = read_file("/proc/cpuinfo", 16 << 20);
  if (!text) return "unknown";
  for (const auto line : split(*text, '\n')) {
    if (line.starts_with("model name")) return std::string(trim(line.substr(line.find(':') + 1)));
  }
  return "unknown";
}

bool contains(std::span<const json::Object> kinds, const json::Object& one) {
  return std::ranges::find(kinds, one) != kinds.end();
}

std::string listed(std::span<const json::Object> kinds) {
  std::string text;
  for (const json::Object& one : kinds) text += (text.empty() ? "" : " and ") + json::dump(one);
  return text.empty() ? "unknown machines" : text;
}

}  // namespace

int usable_cores() {
  const int mask = affinity().count, quota = quota_cores();
  return quota > 0 ? std::min(mask, quota) : mask;
}

std::vector<MemoryLimit> memory_limits() {
  const double machine =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  std::vector<MemoryLimit> limits = {{.id = machine_id(), .name = "machine", .bytes = machine}};
  for (const CgroupValue& value : cgroup_values("memory.max")) {
    const auto bytes = parse_double(value.text);  // "max": none
    struct stat status {};
    if (!bytes || stat((kCgroups + value.path).c_str(), &status) != 0) continue;
    // Containers each see their own group as "/"; its number they do not share.
    limits.push_back({.id = machine_id() + " " + std::to_string(status.st_ino),
                      .name = "cgroup " + value.path,
                      .bytes = *bytes});
  }
  return limits;
}

Result<int> choose_threads(int wanted, int local_ranks, Comm& comm) {
  const Affinity mine = affinity();
  const std::string place = machine_id() + " " + mine.mask;
  MUSTER_TRY(const auto places, comm.gather_text(place));  // collective even where nobody needs it
  if (wanted > 0) return wanted;
  const auto sharing = static_cast<int>(std::count(places.begin(), places.end(), place));
  int threads = mine.count / sharing;
  if (const int quota = quota_cores(); quota > 0)
    threads = std::min(threads, quota / std::max(1, local_ranks));
  return std::max(1, threads);
}

void set_threads(int threads) { at::set_num_threads(threads); }

std::uint64_t resident_bytes() {
  const auto text = read_file("/proc/self/statm", 4096);  // pages: size, resident, ...
  const auto fields = text ? split(*text, ' ') : std::vector<std::string_view>();
  const auto pages = fields.size() > 1 ? parse_int(fields[1]) : std::nullopt;
  return static_cast<std::uint64_t>(pages.value_or(0)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

Result<std::vector<json::Object>> machine_descriptions(const std::string& gemm_path, int threads,
                                                       Comm& comm) {
  const json::Object mine = {{"cpu", cpu_model()},
                             {"mkl_cbwr", gemm_path},
                             {"threads", threads},
                             {"library", "libtorch " TORCH_VERSION}};
  MUSTER_TRY(const auto texts, comm.gather_text(json::dump(mine)));
  std::vector<json::Object> all;
  for (const std::string& text : texts) {
    MUSTER_TRY(json::Object one, json::parse_object(text));
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<json::Object> each_once(std::span<const json::Object> descriptions) {
  std::vector<json::Object> kinds;
  for (const json::Object& one : descriptions) {
    if (!contains(kinds, one)) kinds.push_back(one);
  }
  return kinds;
}

std::string not_bitwise(std::span<const json::Object> then, std::span<const json::Object> now) {
  const auto different = [&](const json::Object& one) { return !contains(then, one); };
  const auto rank = std::ranges::find_if(now, different);
  if (rank != now.end()) {
    const auto others = std::ranges::count_if(now, different) - 1;
    return "the checkpoint is of " + listed(then) + ", rank " + std::to_string(rank - now.begin()) +
           " is now on " + json::dump(*rank) +
           (others == 0 ? "" : "; " + std::to_string(others) + " more differ");
  }
  const auto gone = std::ranges::find_if(then, [&](const json::Object& one) { return !contains(now, one); });
  if (gone == then.end()) return "";
  return "the checkpoint is of " + listed(then) + ", no rank is now on " + json::dump(*gone);
}

}  // namespace muster::train
