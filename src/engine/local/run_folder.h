// The folder of one launch, run/<launch id>/ in the data directory, and who is alive in it.
// docs/formats/run-folder.md.
//
//   launch.json  NodeLaunch (0600)           written by the engine before the start
//   token        the runner's credential (0600)
//   node.json    NodePlan: how the node is made
//   hosts        becomes /etc/hosts of the node
//   ml/ home/    become /opt/ml and /opt/home
//   lock         flock, held while a process of the runner lives (inherited from the engine: no gap)
//   pid          "<pid> <start time>" of the outer runner process
//   init         the same of the inner one, which ends only after all that the job has left
//   exit         "exit 3" or "signal 9": how the runner ended
//   killed       kill_all() has ended the runner
//   drained      nothing is left to ship
//   runner.log   what the runner itself printed
//   spool/       the runner's
//
// Functions are stateless and thread-safe; everything here works when musterd is dead.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "domain/ids.h"
#include "engine/local/sandbox.h"

namespace muster::engine::local {

// How enter_node() makes the node. Also decides what is reported: a probe makes a node, says what is in
// force, and ends.
struct NodePlan {
  bool probe = false;
  bool isolate = true;
  std::string data_directory;  // to be covered, absolute
  std::string host_name;       // algo-2
  JobUser user;
  std::vector<std::string> cgroups;  // cgroup folders to join
  std::vector<std::string> reach;    // folders below closed ones that `user` must get to all the same
  std::vector<std::string> trials;   // probe: programs that `user` must be able to start
};
std::string encode(const NodePlan& plan);
Result<NodePlan> decode_node_plan(std::string_view json);

// A process, safe against reuse of its number: `start` is its start time in clock ticks since boot.
struct ProcessRef {
  pid_t pid = 0;
  std::uint64_t start = 0;
  auto operator<=>(const ProcessRef&) const = default;
};
Result<ProcessRef> process_ref(pid_t pid);                 // not_found when there is none
Result<UniqueFd> open_process(const ProcessRef& process);  // pidfd; not_found when gone or reused

// Writes a small file by rename, without fsync: run folders need not survive a crash of the machine.
Result<void> put_file(const std::string& path, std::string_view data, mode_t mode);

Result<void> write_pid(const std::string& folder, const ProcessRef& process);
std::optional<ProcessRef> read_pid(const std::string& folder);  // nullopt: not started
Result<void> write_init(const std::string& folder, const ProcessRef& process);

// Takes the folder's lock; failed_precondition while a runner lives.
Result<UniqueFd> take_lock(const std::string& folder);
bool is_locked(const std::string& folder);

// Whether anything of the launch lives. The lock alone does not say so: the kernel closes the files of a
// dying init, and only then ends what is left in its pid namespace.
bool is_occupied(const std::string& folder);

// "exit 0", "signal 9"; empty when the runner left no word.
std::string read_exit(const std::string& folder);

// Launches that have a folder in run_directory, in order of their ids. A missing directory has none.
std::vector<domain::LaunchId> list_launches(const std::string& run_directory);

// Deletes a folder with all its content, also where a job took the rights of its own folders away. Not found:
// success.
Result<void> remove_tree(const std::string& path);

// Ends every runner below run_directory: SIGTERM, SIGKILL after `grace`, then waits until all are gone (at
// most 5 s more), and removes the nodes' control groups. Returns how many there were. For `muster down
// --now`; needs no musterd, and leaves the word `killed` for the next one.
Result<int> kill_all(const std::string& run_directory, Millis grace);

// Launches that kill_all() has ended and nobody has released yet.
std::vector<domain::LaunchId> killed_launches(const std::string& run_directory);

}  // namespace muster::engine::local
