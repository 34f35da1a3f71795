#include "engine/local/probe.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/text.h"
#include "engine/local/spawn.h"

namespace muster::engine::local {

Result<void> furnish_folder(const std::string& folder, const NodePlan& plan, const std::string& hosts) {
  for (const auto* name : {"/ml", "/home"}) {
    const auto path = folder + name;
    if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return fail_errno("mkdir " + path);
    MUSTER_CHECK(give_to_job(plan.user, path));
  }
  MUSTER_CHECK(put_file(folder + "/hosts", hosts, 0644));
  ::chmod((folder + "/hosts").c_str(), 0644);  // whatever the umask is: jobs must read it
  return put_file(folder + "/node.json", encode(plan), 0600);
}

std::string hosts_file(const std::vector<std::string>& names) {
  std::string out;
  const auto machine = read_file("/etc/hosts", 1 << 20).value_or("127.0.0.1 localhost\n");
  for (const auto line : split(machine, '\n')) {
    const auto text = line.substr(0, line.find('#'));
    if (text.find("algo-") == std::string_view::npos && !trim(text).empty())
      out += std::string(trim(text)) + "\n";
  }
  for (const auto& name : names) out += name + "\n";
  return out;
}

void end_child(pid_t pid) {
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<NodeReport> probe(const std::string& runner_program, const std::string& run_directory, NodePlan plan) {
  static std::atomic<int> count{0};
  const auto folder = run_directory + "/.probe-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  plan.probe = true;
  plan.host_name = "algo-1";
  const auto attempt = [&]() -> Result<NodeReport> {
    MUSTER_CHECK(make_directories(folder, 0700));
    MUSTER_CHECK(furnish_folder(folder, plan, hosts_file({"127.77.0.1 algo-1"})));
    MUSTER_TRY(auto lock, take_lock(folder));
    MUSTER_TRY(const auto runner, start_runner(runner_program, folder, std::move(lock)));
    auto report = await_report(runner, folder, Millis{10'000});
    end_child(runner.pid);
    return report;
  };
  auto report = attempt();
  const auto removed = remove_tree(folder);
  if (report && !removed) return tl::unexpected(removed.error());
  return report;
}

}  // namespace muster::engine::local
