// How the engine hands a new runner its lock and hears that the node is made.
//
// The engine spawns the runner with MUSTER_NODE_FDS=1: then descriptor 3 holds the folder's lock and 4 is a
// pipe on which one NodeReport is written, after which it is closed. Without it (a runner started by hand or
// by another engine) the runner takes the lock itself and nobody listens. One thread, the first of its
// process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace muster::engine::local {

inline constexpr int kLockFd = 3;
inline constexpr int kReportFd = 4;
inline constexpr const char* kFdsVariable = "MUSTER_NODE_FDS";

// How a line of NodeReport::missing begins when a control group could not be entered.
inline constexpr const char* kLimitsMissing = "limits of the node: ";

// What came out of making a node.
struct NodeReport {
  std::string error;                  // why there is no node; empty: it is made
  std::string remedy;                 // what would change that
  std::vector<std::string> in_force;  // "pid namespace", ...
  std::vector<std::string> missing;   // and why
  bool names_resolve = true;          // not sent: for the inner process
  std::vector<std::string> reach;     // probe: what NodePlan::reach must hold
  std::string not_startable;          // probe: what the job's user cannot start in spite of that, and why
};
std::string encode(const NodeReport& report);
Result<NodeReport> decode_node_report(std::string_view json);

class Handshake {
 public:
  static Handshake from_environment();               // and takes the variable out of it
  Result<UniqueFd> lock(const std::string& folder);  // inherited, else taken now
  void send(const NodeReport& report);               // once; closes the pipe
  void drop() { report_.reset(); }                   // the outer process: the inner one reports

 private:
  UniqueFd lock_;
  UniqueFd report_;
};

}  // namespace muster::engine::local
