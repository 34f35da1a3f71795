// How the job's user gets to programs that lie below a folder that is closed to it: a clone or a cache of
// root below /root (0700). In the node's own mounts an empty folder is put over the closed one, with nothing
// in it but the way to the folders that are needed, at their own paths. The rest of the closed folder the
// user could not see anyway.
//
// Threads: for a process with one thread; open_ways() in a mount namespace of its own.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/local/sandbox.h"

namespace muster::engine::local {

// The first folder on the way to `path` (absolute), itself included, that the user may not pass; empty: none.
std::string barrier(const JobUser& user, const std::string& path);

// Of the folders that `programs` and their libraries are in, those that the user cannot get to.
std::vector<std::string> beyond_reach(const JobUser& user, const std::vector<std::string>& programs);

// Opens the way to each of `folders`. One that is closed itself stays so: rights are not changed.
Result<void> open_ways(const JobUser& user, std::vector<std::string> folders);

}  // namespace muster::engine::local
