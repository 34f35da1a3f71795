// `muster prune`: forgets jobs that ended long ago, with their logs and, when asked, what they left in
// buckets. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/jobs.h"
#include "cli/session.h"

namespace muster::cli {

struct PruneOptions {
  std::string older_than = "7d";  // 30m, 12h, 7d
  bool objects = false;           // also what the jobs wrote below their output paths, and uploaded inputs
};
// Prints and answers the exit code: kFailed when a job stays because its objects could not be removed.
int prune(const Common& common, const PruneOptions& options);

// A job and all that can be removed with it: `<S3OutputPath>/<job>/` of a training job, and the inputs that
// `muster train` or `muster process` uploaded for it. Inputs that one of `others` reads too are not among
// them.
struct OldJob {
  bool training = true;
  std::string name;
  std::vector<data::s3::Place> places;
};
OldJob old_job(const JobFacts& job, const std::string& bucket, const std::vector<JobFacts>& others);

struct Pruned {
  json::Array forgotten;  // {kind, name}
  std::uint64_t objects_removed = 0;
  std::int64_t uploads_aborted = 0;
  std::vector<std::pair<OldJob, Error>> stayed;  // their objects could not all be removed
};
// Objects go first: a job whose objects are still there, for whatever reason, is not forgotten, and the next
// prune finds it again. An error: nothing more was forgotten.
Result<Pruned> prune_jobs(Session& session, std::int64_t older_than_seconds, bool objects);

}  // namespace muster::cli
