// The mounts of a node, made inside its own mount namespace. Each function is one difference from the machine
// (sandbox.h). Plain system calls: all of them together take well under a millisecond.
//
// Threads: for a process with one thread, in a mount namespace of its own.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace muster::engine::local {

// Nothing that is mounted from here on is seen by the machine, nor the other way round.
Result<void> make_mounts_private();

// /proc of the pid namespace. Refused in a user namespace whose machine hides parts of /proc.
Result<void> mount_proc();

Result<void> mount_shared_memory();

// tmpfs on /opt with every child bound back, then ml and home of the launch's folder. `folder` is an open
// descriptor, opened in this mount namespace. Children that cannot be bound are named in `left_out`.
Result<void> mount_opt(int folder, std::vector<std::string>& left_out);

Result<void> mount_hosts(int folder);

// An empty read-only folder over `path`, which must be absolute and not the root, /opt, /proc or /dev.
Result<void> cover(const std::string& path);

}  // namespace muster::engine::local
