#include "cli/jobs.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <thread>

#include "base/text.h"
#include "cli/patience.h"

namespace muster::cli {
namespace {

constexpr std::chrono::milliseconds kJobPoll{300};

JobFacts facts_of(bool training, json::Object raw) {
  JobFacts out;
  const std::string kind = training ? "Training" : "Processing";
  out.training = training;
  out.name = json::opt_string(raw, kind + "JobName").value_or("");
  out.status = json::opt_string(raw, kind + "JobStatus").value_or("");
  out.secondary = json::opt_string(raw, "SecondaryStatus").value_or("");
  out.failure = json::opt_string(raw, "FailureReason").value_or("");
  out.created = json::opt_double(raw, "CreationTime");
  out.started = json::opt_double(raw, kind + "StartTime");
  out.ended = json::opt_double(raw, kind + "EndTime");
  if (const auto* transitions = json::opt_array(raw, "SecondaryStatusTransitions");
      transitions && !transitions->empty()) {
    out.message = json::opt_string(transitions->back().as_object(), "StatusMessage").value_or("");
  }
  const auto* resources = json::opt_object(raw, training ? "ResourceConfig" : "ProcessingResources");
  if (resources != nullptr && !training) resources = json::opt_object(*resources, "ClusterConfig");
  if (resources != nullptr)
    out.nodes = static_cast<int>(json::opt_int(*resources, "InstanceCount").value_or(1));
  if (const auto* artifacts = json::opt_object(raw, "ModelArtifacts")) {
    out.artifacts = json::opt_string(*artifacts, "S3ModelArtifacts").value_or("");
  }
  out.raw = std::move(raw);
  return out;
}

std::string duration_between(std::optional<double> from, std::optional<double> to) {
  if (!from) return "-";
  const auto end = to.value_or(SystemClock().now().unix_seconds());
  return format_duration(Millis{static_cast<std::int64_t>((end - *from) * 1000.0)});
}

json::Object name_request(bool training, const std::string& name) {
  json::Object request;
  request[training ? "TrainingJobName" : "ProcessingJobName"] = name;
  return request;
}

// One page loop over ListTrainingJobs or ListProcessingJobs, newest first.
Result<std::vector<json::Object>> list_kind(Client& client, bool training, const ListOptions& options) {
  std::vector<json::Object> out;
  json::Object request;
  if (!options.status.empty()) request["StatusEquals"] = options.status;
  if (!options.contains.empty()) request["NameContains"] = options.contains;
  for (;;) {
    request["MaxResults"] = std::clamp(options.limit - static_cast<int>(out.size()), 1, 100);
    MUSTER_TRY(const auto page,
               client.sagemaker(training ? "ListTrainingJobs" : "ListProcessingJobs", request));
    const auto* jobs = json::opt_array(page, training ? "TrainingJobSummaries" : "ProcessingJobSummaries");
    if (jobs != nullptr) {
      for (const auto& job : *jobs) out.push_back(job.as_object());
    }
    if (!page.contains("NextToken") || static_cast<int>(out.size()) >= options.limit) return out;
    request["NextToken"] = page.at("NextToken");
  }
}

}  // namespace

Result<JobFacts> describe_job(Client& client, bool training, const std::string& name) {
  auto answer = client.sagemaker(training ? "DescribeTrainingJob" : "DescribeProcessingJob",
                                 name_request(training, name));
  if (answer) return facts_of(training, *std::move(answer));
  // What the service refuses here is the name.
  if (answer.error().code == ErrorCode::failed_precondition) answer.error().code = ErrorCode::not_found;
  return tl::unexpected(std::move(answer).error());
}

Result<JobFacts> find_job(Client& client, const std::string& name) {
  for (const bool training : {true, false}) {
    auto job = describe_job(client, training, name);
    if (job || job.error().code != ErrorCode::not_found) return job;
  }
  return fail(ErrorCode::not_found, "there is no job named " + name + "; `muster jobs` lists them");
}

Result<void> request_stop(Client& client, const JobFacts& job) {
  MUSTER_CHECK(client.sagemaker(job.training ? "StopTrainingJob" : "StopProcessingJob",
                                name_request(job.training, job.name)));
  return {};
}

int exit_code_of(const JobFacts& job) {
  return job.status == "Completed" ? kOk : job.status == "Failed" ? kJobFailed : kJobStopped;
}

Result<std::vector<JobFacts>> find_jobs(Client& client, const ListOptions& options) {
  std::vector<JobFacts> jobs;
  for (const bool training : {true, false}) {
    MUSTER_TRY(auto some, list_kind(client, training, options));
    for (auto& job : some) jobs.push_back(facts_of(training, std::move(job)));
  }
  std::stable_sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
    return a.created.value_or(0) > b.created.value_or(0);
  });
  if (static_cast<int>(jobs.size()) > options.limit) jobs.resize(static_cast<std::size_t>(options.limit));
  return jobs;
}

int list_jobs(const Common& common, const ListOptions& options) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  const auto jobs = find_jobs(session->client, options);
  if (!jobs) return print_error(jobs.error());
  if (common.as_json) {
    json::Array list;
    for (const auto& job : *jobs) list.emplace_back(job.raw);
    json::Object out;
    out["Jobs"] = std::move(list);
    print_json(out);
    return kOk;
  }
  if (jobs->empty()) {
    std::cout << "No jobs"
              << (options.status.empty() && options.contains.empty()
                      ? " yet. Start one with: muster train FILE.toml"
                      : " match")
              << "\n";
    return kOk;
  }
  Table table({"NAME", "KIND", "STATUS", "CREATED", "TOOK"});
  for (const auto& job : *jobs) {
    table.add({job.name, job.training ? "training" : "processing",
               job.status + (job.secondary.empty() || job.over() ? "" : " (" + job.secondary + ")"),
               local_time(job.created),
               duration_between(job.created, job.over() ? job.ended : std::nullopt)});
  }
  std::cout << table.text();
  return kOk;
}

int show_job(const Common& common, const std::string& name) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  const auto job = find_job(session->client, name);
  if (!job) return print_error(job.error());
  if (common.as_json) {
    print_json(job->raw);
    return kOk;
  }
  std::cout << job->name << "  " << (job->training ? "training" : "processing") << " on " << job->nodes
            << (job->nodes == 1 ? " node" : " nodes") << "\n"
            << "Status   " << job->status
            << (job->secondary.empty() || job->secondary == job->status ? "" : " (" + job->secondary + ")")
            << "\n"
            << "Created  " << local_time(job->created) << "\n";
  if (!job->failure.empty()) std::cout << "Reason   " << job->failure << "\n";
  if (const auto said = json::opt_string(job->raw, "ExitMessage"); said && !said->empty())
    std::cout << "Message  " << *said << "\n";
  if (const auto* transitions = json::opt_array(job->raw, "SecondaryStatusTransitions")) {
    std::cout << "\n";
    Table table({"ENTERED", "STATUS", "TOOK", "MESSAGE"});
    for (const auto& entry : *transitions) {
      const auto& transition = entry.as_object();
      const auto start = json::opt_double(transition, "StartTime");
      table.add({local_time(start), json::opt_string(transition, "Status").value_or(""),
                 duration_between(start, json::opt_double(transition, "EndTime")),
                 json::opt_string(transition, "StatusMessage").value_or("")});
    }
    std::cout << table.text();
  }
  if (job->status == "Completed" && !job->artifacts.empty())
    std::cout << "\nModel    " << job->artifacts << "\n";
  std::cout << "\nLogs     " << command_of(common.data) << " logs " << job->name << (job->over() ? "" : " -f")
            << "\n";
  return kOk;
}

int stop_job(const Common& common, const std::string& name) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  const auto job = find_job(session->client, name);
  if (!job) return print_error(job.error());
  if (auto asked = request_stop(session->client, *job); !asked) return print_error(asked.error());
  if (common.as_json) {
    print_json({});
  } else {
    std::cout << "Stopping " << name << ": its command has 120 s to end; see: " << command_of(common.data)
              << " wait " << name << "\n";
  }
  return kOk;
}

int wait_job(const Common& common, const std::string& name, int timeout_s) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  const auto begin = boot_time();
  for (;;) {
    Patience patience;
    const auto left = begin + std::chrono::seconds(timeout_s) - boot_time();
    if (timeout_s > 0) patience.longest = std::clamp<Millis>(left, Millis{0}, patience.longest);
    const auto job = patiently(patience, [&] { return find_job(session->client, name); });
    if (!job) return print_error(job.error());
    if (job->over()) {
      if (common.as_json) {
        print_json(job->raw);
      } else {
        std::cout << name << " ended " << job->status << " after "
                  << duration_between(job->created, job->ended)
                  << (job->failure.empty() ? "" : ": " + job->failure) << "\n";
      }
      return exit_code_of(*job);
    }
    if (timeout_s > 0 && left <= Millis{0}) {
      std::cerr << "muster: " << name << " is still " << job->status << " after " << timeout_s
                << " s; it goes on: wait longer, or end it with: " << command_of(common.data) << " stop "
                << name << std::endl;
      return kJobRuns;
    }
    std::this_thread::sleep_for(timeout_s > 0 ? std::clamp<Millis>(left, Millis{0}, kJobPoll) : kJobPoll);
  }
}

std::string LogReader::group() const {
  return training_ ? "/aws/sagemaker/TrainingJobs" : "/aws/sagemaker/ProcessingJobs";
}

Result<void> LogReader::find_streams() {
  json::Object request;
  request["logGroupName"] = group();
  request["logStreamNamePrefix"] = job_ + "/";
  for (;;) {
    auto page = client_.logs("DescribeLogStreams", request);
    if (!page && page.error().code == ErrorCode::not_found) return {};  // no stream was ever made
    if (!page) return tl::unexpected(page.error());
    if (const auto* list = json::opt_array(*page, "logStreams")) {
      for (const auto& entry : *list) {
        const auto name = json::opt_string(entry.as_object(), "logStreamName").value_or("");
        if (std::any_of(streams_.begin(), streams_.end(),
                        [&](const auto& known) { return known.name == name; }))
          continue;
        const auto host = name.substr(job_.size() + 1);
        streams_.push_back({name, host.substr(0, host.rfind('-')), "", {}});
      }
    }
    const auto next = json::opt_string(*page, "nextToken");
    if (!next) return {};
    request["nextToken"] = *next;
  }
}

// The next page of a stream; none: it is exhausted for now.
Result<void> LogReader::fetch(Stream& stream) {
  json::Object request;
  request["logGroupName"] = group();
  request["logStreamName"] = stream.name;
  request["startFromHead"] = true;
  if (!stream.token.empty()) request["nextToken"] = stream.token;
  MUSTER_TRY(const auto page, client_.logs("GetLogEvents", request));
  const auto* events = json::opt_array(page, "events");
  stream.exhausted = events == nullptr || events->empty();
  if (!stream.exhausted) {
    for (const auto& entry : *events) {
      const auto& event = entry.as_object();
      stream.page.push_back({json::opt_int(event, "timestamp").value_or(0), stream.host,
                             json::opt_string(event, "message").value_or("")});
    }
  }
  stream.token = json::opt_string(page, "nextForwardToken").value_or("");
  return {};
}

// The stream whose next line is the oldest; null: all are exhausted.
Result<LogReader::Stream*> LogReader::earliest() {
  Stream* first = nullptr;
  for (auto& stream : streams_) {
    if (stream.page.empty() && !stream.exhausted) MUSTER_CHECK(fetch(stream));
    if (stream.page.empty()) continue;
    if (first == nullptr || stream.page.front().time_ms < first->page.front().time_ms) first = &stream;
  }
  return first;
}

Result<void> LogReader::read(const Sink& sink) {
  MUSTER_CHECK(find_streams());
  for (auto& stream : streams_) stream.exhausted = false;
  for (;;) {
    MUSTER_TRY(auto* stream, earliest());
    if (stream == nullptr) return {};
    sink(stream->page.front());
    stream->page.pop_front();
  }
}

Result<void> check_host(const JobFacts& job, const std::string& host) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < job.nodes; ++rank) hosts.push_back("algo-" + std::to_string(rank + 1));
  if (host.empty() || std::find(hosts.begin(), hosts.end(), host) != hosts.end()) return {};
  const auto listed = hosts.size() <= 4 ? join(hosts, ", ") : hosts.front() + " to " + hosts.back();
  return fail(ErrorCode::not_found, "job " + job.name + " has no host \"" + host + "\"; it has " + listed);
}

int show_logs(const Common& common, const std::string& name, const LogsOptions& options) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  auto job = find_job(session->client, name);
  if (!job) return print_error(job.error());
  if (const auto there = check_host(*job, options.host); !there) return print_error(there.error());
  LogReader reader(session->client, job->training, name);
  const bool show_host = job->nodes > 1 && options.host.empty();
  const auto print = [&](const LogReader::Line& line) {
    if (!options.host.empty() && line.host != options.host) return;
    if (common.as_json) {
      json::Object event;
      event["timestamp"] = line.time_ms;
      event["host"] = line.host;
      event["message"] = line.text;
      std::cout << json::dump(event) << "\n";
    } else {
      std::cout << (show_host ? line.host + "  " : "") << line.text << "\n";
    }
  };
  const Patience patience{.longest = options.follow ? Patience{}.longest : Millis{0}};
  bool last_round = job->over() || !options.follow;
  for (;;) {
    const auto read = patiently(patience, [&] { return reader.read(print); });
    std::cout.flush();
    if (!read) return print_error(read.error());
    if (last_round) return kOk;
    std::this_thread::sleep_for(kJobPoll);
    // Logs are complete before the end shows, so one more read after it misses nothing.
    job = patiently(patience, [&] { return find_job(session->client, name); });
    if (!job) return print_error(job.error());
    last_round = job->over();
  }
}

}  // namespace muster::cli
