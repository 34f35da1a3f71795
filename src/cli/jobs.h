// Jobs: list, show, wait for, stop; and their logs. Each function is one command: it prints and answers the
// exit code.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/output.h"
#include "cli/session.h"

namespace muster::cli {

// A job of either kind, in words that both share.
struct JobFacts {
  bool training = true;
  std::string name;
  std::string status;     // InProgress, Completed, Failed, Stopping, Stopped
  std::string secondary;  // training only
  std::string message;    // of the last transition
  std::string failure;
  int nodes = 1;
  std::optional<double> created, started, ended;
  std::string artifacts;  // s3 URI of model.tar.gz
  json::Object raw;       // the Describe answer
  bool over() const { return status == "Completed" || status == "Failed" || status == "Stopped"; }
};

// Looks among training jobs, then processing jobs; not_found names both.
Result<JobFacts> find_job(Client& client, const std::string& name);

struct ListOptions {
  std::string status;  // as the API spells it; empty: any
  std::string contains;
  int limit = 20;
};
int list_jobs(const Common& common, const ListOptions& options);
int show_job(const Common& common, const std::string& name);
int stop_job(const Common& common, const std::string& name);
// Exit code kOk, kJobFailed or kJobStopped; timeout_s 0: for ever.
int wait_job(const Common& common, const std::string& name, int timeout_s);

struct LogsOptions {
  bool follow = false;
  std::string host;  // "algo-2"; empty: all
};
int show_logs(const Common& common, const std::string& name, const LogsOptions& options);

// Reads new lines of a job's streams, in order of time; call again for more.
class LogReader {
 public:
  struct Line {
    std::int64_t time_ms = 0;
    std::string host;
    std::string text;
  };
  LogReader(Client& client, bool training, std::string job)
      : client_(client), training_(training), job_(std::move(job)) {}
  // Lines that arrived since the last call; empty: none now.
  Result<std::vector<Line>> read();
  std::size_t streams() const { return streams_.size(); }

 private:
  struct Stream {
    std::string name;
    std::string host;
    std::string token;
  };
  Result<void> find_streams();

  Client& client_;
  bool training_;
  std::string job_;
  std::vector<Stream> streams_;
};

}  // namespace muster::cli
