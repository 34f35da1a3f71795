// What this machine can isolate, tried out: for `muster doctor` and for the lines that `muster up` prints.
// Any thread; calls share nothing but the folder.
#pragma once

#include <string>
#include <vector>

#include "engine/local/local_engine.h"

namespace muster::engine::local {

struct Check {
  enum class State { ok, note, warn, fail };  // note: so it is here, and nothing is wrong
  std::string name;                           // "namespaces"
  State state = State::ok;
  std::string message;  // what was found
  std::string remedy;   // what to do about it; empty when ok
};

// Makes a node and takes it down again; writes below options.data_directory only. Tens of milliseconds.
std::vector<Check> doctor(const Options& options);

}  // namespace muster::engine::local
