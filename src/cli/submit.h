// `muster train` and `muster process`: a request in TOML, uploads, the job, and watching it. One thread;
// uploads run in parallel inside.
#pragma once

#include <string>

#include "cli/request_file.h"
#include "cli/session.h"

namespace muster::cli {

struct SubmitOptions {
  std::string file;
  RequestKind kind = RequestKind::training;
  bool watch = false;
  bool show_logs = false;  // with watch: every log line of the first node instead of a progress line
};
int submit_file(const Common& common, const SubmitOptions& options);

// Shows a job until it ends: one line a status, with progress while it trains. Exit code as wait_job. Goes on
// while the service restarts. Ctrl-C ends the process by SIGINT and says first that the job goes on.
int watch_job(const Common& common, Session& session, const std::string& name, bool show_logs);

}  // namespace muster::cli
