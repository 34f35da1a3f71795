// The service itself: up, down, env, doctor, nodes. Each function is one command: it prints and
// answers the exit code. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/session.h"

namespace muster::cli {

struct UpOptions {
  std::string listen;
  int nodes = 0;  // 0: as configured
  bool detach = false;
  bool insecure = false;
  Millis start_max{30'000};  // how long a musterd may take until it answers
};
// Foreground: becomes musterd. Detached: starts it and waits until it answers. A service that already runs is
// left as it is, and options that ask for another number of nodes or another address are refused; one that
// holds the directory and does not answer is an error.
int up(const Common& common, const UpOptions& options);

struct DownOptions {
  bool stop_jobs = false;   // stop every job and wait
  bool leave_jobs = false;  // jobs run on
  bool now = false;         // kill everything, also when musterd is dead
};
// What the engine lends: kills every runner below run/ after SIGTERM and `grace`; answers how many.
using KillAll = std::function<Result<int>(const std::string& run_directory, Millis grace)>;
int down(const Common& common, const DownOptions& options, const KillAll& kill_all);

// Shell exports; with `sagemaker_sdk` also writes the SDK's configuration file and makes its bucket.
int print_environment(const Common& common, bool sagemaker_sdk);

struct DoctorCheck {
  std::string state;  // ok, note, warn, fail
  std::string name;
  std::string message;
  std::string remedy;
};
int doctor(const Common& common, const std::function<std::vector<DoctorCheck>()>& checks);

int show_nodes(const Common& common);

}  // namespace muster::cli
