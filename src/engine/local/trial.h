// Whether the job's user can start a program: the dynamic loader is asked, as that user, to find all
// libraries. Rights on files do not tell it all: a library may lie in a folder that is closed to others.
//
// Threads: for a process with one thread (the probe's).
#pragma once

#include <string>
#include <vector>

#include "engine/local/sandbox.h"

namespace muster::engine::local {

// Empty: it can. Otherwise what is not found or refused: "libtorch_cpu.so => not found".
std::string why_not_startable(const JobUser& user, const std::string& program);

// The program and the libraries that the loader finds for it, as we ourselves see them.
std::vector<std::string> files_loaded_by(const std::string& program);

}  // namespace muster::engine::local
