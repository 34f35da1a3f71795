// The inside of a local node: what `muster-runner node <run folder>` calls before anything else.
//
// The process that the engine spawned splits in two. The outer one stays behind, passes SIGTERM on, waits,
// and writes how the runner ended. The inner one returns from enter_node() as init (pid 1) of a pid
// namespace, so that everything it leaves behind, by whatever fork or setsid, dies with it. It sees the
// machine's own root file system, with these differences:
//
//   /opt        an own copy of the folder's first level; /opt/ml and /opt/home belong to this launch alone
//   /etc/hosts  names algo-1 .. algo-N
//   /proc, /dev/shm, SysV IPC, host name   its own
//   data directory   covered: no keys, no state, no other job, not even the launch's own folder by its path
//   a folder closed to the job's user, with programs somewhere below it: only the way to those (reach.h)
//
// As root this takes mount, pid, IPC and UTS namespaces; otherwise a user namespace too, in which every uid
// is itself. docs/adr/0008-local-nodes.md.
//
// Threads: enter_node() is called by a process that has one thread and no children.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace muster::engine::local {

// Whom the command of a job runs as. The runner itself stays what it is.
struct JobUser {
  bool change = false;  // false: as the runner; the other members are then unused, but `name` and `home`
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  std::string name;
  std::string home;  // HOME of the command; exists and is writable in the node
};

struct Node {
  // The launch's folder (launch.json, token, spool/, ml/) as the runner reaches it: "/proc/self/fd/N", a
  // descriptor that its children do not inherit. The path that was given to enter_node() is covered.
  std::string folder;
  // Where the job's /opt/ml is: "/opt/ml", or a folder of the launch when there are no namespaces (then only
  // built-in programs run, and every path below /opt/ml must be rewritten).
  std::string opt_ml;
  bool isolated = true;
  bool names_resolve = true;  // algo-1 .. algo-N, by /etc/hosts of the node
  JobUser user;
};

// Makes the node of the launch in `folder` and returns inside it. On return
// - the process holds the lock of the folder for as long as it lives (do not lock again) and is registered
//   in `pid`;
// - SIGTERM is blocked, because init would lose one that came before its handler: install the handler or a
//   signalfd, then unblock. become_job() unblocks it for the command;
// - as init the caller must reap all children (waitpid(-1)), also those it did not start;
// - standard input is /dev/null, output and error go to runner.log.
// Exit with 0 only after the final report was acknowledged: any other end makes the engine run
// `muster-runner drain <run folder>` outside the node (the folder's lock is held for it, too, and it must not
//   take it), which must exit with 0 when nothing is left to ship.
// On an error (the engine is told it, too): print it and exit with 1.
[[nodiscard]] Result<Node> enter_node(const std::string& folder);

// In the child that is going to be the command, between fork and exec (async-signal-safe; no vfork with other
// threads needed): takes the user, gives up every way to more rights (no_new_privs, capabilities), empties
// the signal mask, and offers itself first to the out-of-memory killer. 0, or the errno of what was refused:
// then do not exec.
int become_job(const JobUser& user) noexcept;

// Gives `path` and all below it to the job's user, so that the command may write there. Call it on /opt/ml
// just before the command starts; symbolic links are not followed. Nothing to do when the user does not
// change.
[[nodiscard]] Result<void> give_to_job(const JobUser& user, const std::string& path);

}  // namespace muster::engine::local
