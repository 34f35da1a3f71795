// Limits of local nodes by control groups: memory and number of processes as hard limits, processor time as a
// share (a node may use idle processors of others).
//
// Every controller is taken from the hierarchy that has it, version 1 or 2, where that is writable; one that
// is not is named in missing(). The groups are <own group>/muster-<hash>/node-K, made once; entering one
// costs the kernel about 7 ms on every hierarchy, which a start should not pay. Version 1 groups hold single
// threads and children inherit them: so one thread a node enters its groups once and starts all runners of
// the node (Launcher). Version 2 holds whole processes: there the runner enters by itself
// (NodePlan::cgroups).
//
// Threads: Cgroups is immutable after make(). Launcher::run may be called by several threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "domain/cluster.h"

namespace muster::engine::local {

inline constexpr const char* kMemoryLimit = "memory limit";  // how its line of in_force() begins

class Cgroups {
 public:
  // `name`: of the folder that holds the nodes' groups. Never fails: what cannot be limited is said.
  static Cgroups make(const std::string& name, const std::vector<domain::Node>& nodes);
  void remove() const;  // the groups that are empty
  // So that remove_cgroups() finds them when musterd is dead: run/cgroups, one folder a line.
  Result<void> note(const std::string& run_directory) const;

  std::vector<std::string> process_groups(const std::string& node) const;  // version 2: folders to enter
  std::vector<std::string> thread_groups(const std::string& node) const;   // version 1
  const std::vector<std::string>& in_force() const { return in_force_; }
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  struct Hierarchy {
    bool unified = false;  // version 2
    std::string folder;    // .../muster-<hash>
  };
  std::vector<Hierarchy> hierarchies_;
  std::vector<std::string> nodes_;
  std::vector<std::string> in_force_;
  std::vector<std::string> missing_;
};

// Removes the groups noted in the run directory, as far as they are empty. Nothing noted: nothing to do.
void remove_cgroups(const std::string& run_directory);

// A thread that lives in given version 1 groups and calls what it is given there, one after the other.
class Launcher {
 public:
  explicit Launcher(std::vector<std::string> groups);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  void run(const std::function<void()>& work);  // returns when it is done
  std::string refused();                        // why a group could not be entered; empty: all are

 private:
  void loop(const std::vector<std::string>& groups);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  bool busy_ = false;
  bool closed_ = false;
  std::string refused_;  // written before the first work is taken
  std::jthread thread_;
};

}  // namespace muster::engine::local
