#include "cli/prune.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <limits>
#include <optional>

#include "base/s3_uri.h"
#include "base/text.h"
#include "cli/objects.h"
#include "cli/output.h"
#include "cli/request_file.h"

namespace muster::cli {
namespace {

constexpr std::size_t kNamedMax = 1'000;  // jobs that one request names

// "30m", "12h", "7d" in seconds.
std::optional<std::int64_t> parse_age(const std::string& text) {
  if (text.size() < 2) return std::nullopt;
  const auto number = parse_int(std::string_view(text).substr(0, text.size() - 1));
  if (!number || *number < 0 || *number > 100'000) return std::nullopt;
  switch (text.back()) {
    case 's':
      return *number;
    case 'm':
      return *number * 60;
    case 'h':
      return *number * 3'600;
    case 'd':
      return *number * 86'400;
    default:
      return std::nullopt;
  }
}

std::string_view kind_of(bool training) { return training ? "training" : "processing"; }

struct Input {
  std::string name;
  std::string uri;
};

std::vector<Input> inputs_of(const JobFacts& job) {
  std::vector<Input> out;
  const auto* list = json::opt_array(job.raw, job.training ? "InputDataConfig" : "ProcessingInputs");
  if (list == nullptr) return out;
  for (const auto& entry : *list) {
    const auto& input = entry.as_object();
    const auto* source = json::opt_object(input, job.training ? "DataSource" : "S3Input");
    if (source != nullptr && job.training) source = json::opt_object(*source, "S3DataSource");
    if (source == nullptr) continue;
    out.push_back({json::opt_string(input, job.training ? "ChannelName" : "InputName").value_or(""),
                   json::opt_string(*source, "S3Uri").value_or("")});
  }
  return out;
}

// A prefix that holds or is held by another: what is below one may be read through the other.
bool overlaps(const std::string& one, const std::string& other) {
  return one.starts_with(other) || other.starts_with(one);
}

bool is_read_by(const std::vector<JobFacts>& jobs, const std::string& uri) {
  return std::any_of(jobs.begin(), jobs.end(), [&](const JobFacts& job) {
    const auto inputs = inputs_of(job);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const Input& input) { return overlaps(input.uri, uri); });
  });
}

// Every job of both kinds, described.
Result<std::vector<JobFacts>> all_jobs(Client& client) {
  ListOptions everything;
  everything.limit = std::numeric_limits<int>::max();
  MUSTER_TRY(const auto listed, find_jobs(client, everything));
  std::vector<JobFacts> out;
  for (const auto& job : listed) {
    MUSTER_TRY(auto described, describe_job(client, job.training, job.name));
    out.push_back(std::move(described));
  }
  return out;
}

Result<std::vector<OldJob>> old_jobs(Session& session, double ended_before) {
  MUSTER_TRY(auto jobs, all_jobs(session.client));
  const auto young = std::stable_partition(jobs.begin(), jobs.end(), [&](const JobFacts& job) {
    return job.over() && job.ended && *job.ended < ended_before;
  });
  const std::vector<JobFacts> others(std::make_move_iterator(young), std::make_move_iterator(jobs.end()));
  jobs.erase(young, jobs.end());
  std::vector<OldJob> out;
  for (const auto& job : jobs) out.push_back(old_job(job, session.bucket, others));
  return out;
}

// A bucket that is gone holds nothing.
Result<std::uint64_t> remove_places(data::s3::Client& s3, const std::vector<data::s3::Place>& places) {
  std::uint64_t removed = 0;
  for (const auto& place : places) {
    const auto some = remove_prefix(s3, place);
    if (!some && some.error().code == ErrorCode::not_found) continue;
    if (!some) return some;
    removed += *some;
  }
  return removed;
}

// The answer's `left`.
Result<std::int64_t> forget(Client& client, const json::Object& request, Pruned& out) {
  MUSTER_TRY(const auto answer, client.post("/api/v1/prune", request));
  if (const auto* part = json::opt_array(answer, "pruned"))
    out.forgotten.insert(out.forgotten.end(), part->begin(), part->end());
  out.uploads_aborted += json::opt_int(answer, "uploads_aborted").value_or(0);
  return json::opt_int(answer, "left").value_or(0);
}

void print_pruned(const Common& common, const PruneOptions& options, const Pruned& pruned) {
  const auto& forgotten = pruned.forgotten;
  if (common.as_json) {
    json::Array stayed;
    for (const auto& [job, why] : pruned.stayed)
      stayed.push_back({{"kind", kind_of(job.training)}, {"name", job.name}, {"message", why.message}});
    print_json(json::Object{{"pruned", forgotten},
                            {"uploads_aborted", pruned.uploads_aborted},
                            {"objects_removed", pruned.objects_removed},
                            {"stayed", std::move(stayed)}});
  } else {
    std::cout << "Forgot " << forgotten.size() << (forgotten.size() == 1 ? " job" : " jobs")
              << " that ended more than " << options.older_than << " ago, with their logs"
              << (options.objects ? ", and removed " + std::to_string(pruned.objects_removed) + " objects"
                                  : "")
              << (pruned.uploads_aborted == 0
                      ? ""
                      : "; aborted " + std::to_string(pruned.uploads_aborted) + " abandoned uploads")
              << std::endl;
  }
  for (const auto& [job, why] : pruned.stayed) {
    std::cerr << "muster: " << kind_of(job.training) << " job " << job.name
              << " is kept, its objects could not all be removed: " << why.message
              << "; prune again, or without --objects\n";
  }
}

}  // namespace

OldJob old_job(const JobFacts& job, const std::string& bucket, const std::vector<JobFacts>& others) {
  OldJob out{job.training, job.name, {}};
  const auto marker = "/" + job.name + "/output/";
  if (const auto at = job.artifacts.rfind(marker); job.training && at != std::string::npos) {
    if (auto place = parse_s3_uri(job.artifacts.substr(0, at + job.name.size() + 2)))
      out.places.push_back(*std::move(place));
  }
  for (const auto& input : inputs_of(job)) {
    const auto prefix = upload_prefix(job.name, input.name);
    const auto uri = "s3://" + bucket + "/" + prefix;
    if (input.uri == uri && !is_read_by(others, uri + "/")) out.places.push_back({bucket, prefix + "/"});
  }
  return out;
}

Result<Pruned> prune_jobs(Session& session, std::int64_t older_than_seconds, bool objects) {
  Pruned out;
  json::Object request;
  request["older_than_seconds"] = older_than_seconds;
  if (!objects) {
    for (bool more = true; more;) {
      MUSTER_TRY(const auto left, forget(session.client, request, out));
      more = left > 0;
    }
    return out;
  }
  const auto now = SystemClock().now();
  MUSTER_TRY(const auto jobs,
             old_jobs(session, now.unix_seconds() - static_cast<double>(older_than_seconds)));
  json::Array cleared;
  for (const auto& job : jobs) {
    if (const auto removed = remove_places(*session.s3, job.places)) {
      out.objects_removed += *removed;
      cleared.push_back({{"kind", kind_of(job.training)}, {"name", job.name}});
    } else {
      out.stayed.emplace_back(job, removed.error());
    }
  }
  std::size_t named = 0;
  do {  // once without any job too: for the abandoned uploads
    const auto end = std::min(named + kNamedMax, cleared.size());
    request["jobs"] = json::Array(cleared.begin() + static_cast<std::ptrdiff_t>(named),
                                  cleared.begin() + static_cast<std::ptrdiff_t>(end));
    MUSTER_CHECK(forget(session.client, request, out));
    named = end;
  } while (named < cleared.size());
  return out;
}

int prune(const Common& common, const PruneOptions& options) {
  const auto seconds = parse_age(options.older_than);
  if (!seconds) {
    std::cerr << "muster: --older-than is \"" << options.older_than
              << "\", it must be a number and one of s, m, h, d, for example 7d\n";
    return kUsage;
  }
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  const auto pruned = prune_jobs(*session, *seconds, options.objects);
  if (!pruned) return print_error(pruned.error());
  print_pruned(common, options, *pruned);
  return pruned->stayed.empty() ? kOk : kFailed;
}

}  // namespace muster::cli
