// Jobs: list, show, wait for, stop; and their logs. Each function is one command: it prints and answers the
// exit code. One thread.
#pragma once

#include <deque>
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

// not_found: there is no job of that kind and name.
Result<JobFacts> describe_job(Client& client, bool training, const std::string& name);
// Looks among training jobs, then processing jobs; not_found names both.
Result<JobFacts> find_job(Client& client, const std::string& name);
// Asks for the end of a job and does not wait for it; a job that has ended is refused.
Result<void> request_stop(Client& client, const JobFacts& job);
// Of a job that is over: kOk, kJobFailed or kJobStopped.
int exit_code_of(const JobFacts& job);

struct ListOptions {
  std::string status;  // as the API spells it; empty: any
  std::string contains;
  int limit = 20;
};
// Of both kinds, newest first; the facts that a list answers: no history, no nodes.
Result<std::vector<JobFacts>> find_jobs(Client& client, const ListOptions& options);
int list_jobs(const Common& common, const ListOptions& options);
int show_job(const Common& common, const std::string& name);
int stop_job(const Common& common, const std::string& name);
// timeout_s 0: for ever; kJobRuns when it is over first. Goes on while the service restarts.
int wait_job(const Common& common, const std::string& name, int timeout_s);

struct LogsOptions {
  bool follow = false;
  std::string host;  // "algo-2"; empty: all
};
// not_found, with the hosts that there are, unless `host` is one of the job's; "" is all of them.
Result<void> check_host(const JobFacts& job, const std::string& host);
// With `follow` goes on while the service restarts, without losing or repeating a line.
int show_logs(const Common& common, const std::string& name, const LogsOptions& options);

// Reads new lines of a job's streams, in order of time; call again for more. Holds a page of each stream.
class LogReader {
 public:
  struct Line {
    std::int64_t time_ms = 0;
    std::string host;
    std::string text;
  };
  LogReader(Client& client, bool training, std::string job)
      : client_(client), training_(training), job_(std::move(job)) {}
  using Sink = std::function<void(const Line&)>;
  // Gives the lines that arrived since the last call to `sink`. After an error the next call goes on where
  // this one broke off: no line is lost or comes twice.
  Result<void> read(const Sink& sink);

 private:
  struct Stream {
    std::string name;
    std::string host;
    std::string token;       // where the next page begins
    std::deque<Line> page;   // fetched, not given to a sink yet
    bool exhausted = false;  // in this call: it has no more lines now
  };
  Result<void> find_streams();
  Result<void> fetch(Stream& stream);
  Result<Stream*> earliest();
  std::string group() const;

  Client& client_;
  bool training_;
  std::string job_;
  std::vector<Stream> streams_;
};

}  // namespace muster::cli
