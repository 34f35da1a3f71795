// The local engine: this machine, cut into virtual nodes node-1 .. node-N with addresses 1 .. N of a loopback
// network of its own (machine.h).
//
// Every rank is one process `muster-runner node run/<launch id>` that outlives musterd; all it needs is in
// that folder (run_folder.h), so that an engine made later on the same data directory finds every runner
// again. The engine keeps nothing that it could not read from there. A thread of its own waits on the pidfds
// of all runners, without polling; the exit handler is called from it.
//
// In NodeLaunch, `interface` is "lo", `address` the node's, and credentials_uri is
// "http://127.0.0.1:0/credentials": the runner listens on a free port and gives the job the URI with the port
// it got.
//
// Threads: all functions may be called by several threads at once. launch() takes a few milliseconds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ports/engine.h"

namespace muster::engine::local {

struct Options {
  std::string data_directory;  // absolute
  std::string runner_program;  // absolute path of muster-runner
  std::string endpoint_url;    // of musterd, as runners and jobs reach it
  int nodes = 2;               // 1 .. 250
  // `[local] user`: whom jobs run as when musterd is root. Empty: "muster" if there is such a user, else
  // "nobody", if that one can start the programs; else root with few capabilities.
  std::string user;
  bool namespaces = true;    // false: as if the machine refused them
  Millis drain_max{60'000};  // how long a dead runner's spool may take to be shipped
};

class LocalEngine final : public ports::Engine {
 public:
  // Tries a node out (a few milliseconds) and makes run/ and the cgroups. An error: bad options, or a runner
  // program that cannot be started. A machine without namespaces is no error: inventory() says so.
  static Result<std::unique_ptr<LocalEngine>> create(Options options);
  ~LocalEngine() override;  // runners go on

  // Also finds the runners of an earlier musterd; their exits are posted like those of new ones.
  void on_exit(std::function<void(const ports::NodeExit&)> handler) override;
  Result<domain::Inventory> inventory() override;
  Result<void> launch(const domain::GangLaunch& gang) override;
  Result<void> stop(const domain::LaunchId& id, Millis grace) override;
  // unavailable, to be tried again: the runner is still ending, or its spool could not be shipped yet.
  Result<void> release(const domain::LaunchId& id) override;
  Result<std::vector<domain::Observation>> observe() override;

 private:
  class Impl;
  explicit LocalEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::engine::local
