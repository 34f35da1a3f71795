// The transfers of one launch: all that happens to files before and after the command.
//
// Threading: prepare() and finish() are called from one thread, one after the other; scan() between them from
// another.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "domain/launch.h"
#include "runner/core/core.h"
#include "runner/transfer/checkpoint.h"
#include "runner/transfer/objects.h"

namespace muster::runner {

struct WorkContext {
  domain::NodeLaunch launch;
  std::string opt_ml = "/opt/ml";
  std::string scratch;  // folder for archives on their way
  bool names_resolve = true;
  std::function<Result<void>(const std::string& path)> give;  // to the job's user
  std::function<void(std::string)> log;
};

class Work {
 public:
  Work(WorkContext context, Objects& objects);

  // Folders, configuration files, channels, checkpoints; then all of it belongs to the job's user. Answers
  // what was staged, for people.
  tl::expected<std::string, core::Failure> prepare(std::stop_token stop);

  // What is copied while the command runs: settled checkpoints, continuous outputs. Errors go to the log,
  // each once until that folder's copy works again.
  bool has_scans() const { return !syncs_.empty(); }
  void scan(std::stop_token stop);

  // Last checkpoints, then outputs, each whatever became of the others. Answers what was uploaded, or the
  // first error; further ones go to the log.
  tl::expected<std::string, core::Failure> finish(std::stop_token stop);

 private:
  Result<void> check_paths() const;
  Result<void> check_names() const;
  Result<void> write_files() const;
  std::string place(std::string_view path) const;

  const WorkContext context_;
  Objects& objects_;
  std::unique_ptr<CheckpointSync> checkpoint_;
  std::vector<std::unique_ptr<CheckpointSync>> outputs_;  // continuous ones
  struct Sync {
    CheckpointSync* copy;
    std::string error;  // said last; empty while it works
  };
  std::vector<Sync> syncs_;
};

}  // namespace muster::runner
