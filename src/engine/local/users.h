// Whom the jobs of the local engine run as. Functions without state: any thread.
#pragma once

#include <string>

#include "base/error.h"
#include "engine/local/sandbox.h"

namespace muster::engine::local {

struct UserChoice {
  JobUser user;
  std::string in_force;  // "jobs run as nobody"
  std::string missing;   // why they run with more rights than they need; empty: they do not
};

// `wanted`: the setting `[local] user`, or empty for the default (local_engine.h). Whether that user can
// start the programs is for a probe to say. Errors: no such user; musterd is not root and may not change
// users.
Result<UserChoice> choose_user(const std::string& wanted);

// When the chosen one cannot do it: root with few capabilities, and why.
UserChoice as_root(const std::string& why);

}  // namespace muster::engine::local
