// From submit to the first log line of a job of two nodes that runs /bin/echo, in alternation with
// `srun -N2 /bin/echo` of a local Slurm, and where the time goes.
//
//   bench_latency [RUNS]          default 20; srun is measured when SLURM_CONF is set
//
// Muster: from before CreateTrainingJob is sent until FilterLogEvents, asked every millisecond, has a line of
// the command. Slurm: from before srun is started until its first byte of output. Then each waits until its
// nodes are free. Hops are in whole milliseconds, from the job's record (a transition carries the time at
// which the batch of its commit began) and from the log (a line's time is the runner's, its ingestion time
// the log store's).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "base/sqlite.h"
#include "bench/support/child.h"
#include "bench/support/server.h"
#include "bench/support/summary.h"
#include "cli/client.h"
#include "wire/record/record.h"

namespace muster::bench {
namespace {

using Steady = std::chrono::steady_clock;

constexpr Millis kJobMax{60'000};
constexpr const char* kGroup = "/aws/sagemaker/TrainingJobs";
constexpr const char* kSaid = "first line";

double ms_since(Steady::time_point start) {
  return std::chrono::duration<double, std::milli>(Steady::now() - start).count();
}

// The hops of one job: milliseconds since the one before, in the order in which they happen.
constexpr const char* kHops[] = {
    "sent, checked, being placed",    // until the time that commit 1 carries
    "runners up on both nodes",       // commit 1; folders, namespaces, start of the programs
    "staged, ready, being released",  // until the time that commit 2 carries
    "first line read by a runner",    // commit 2; the command starts
    "at the log store",
    "visible to a client",           // the log's fdatasync
    "(running, of the line read)"};  // beside the path: commit 3 carries this time
using Hops = std::vector<double>;

json::Object job_request(const std::string& name) {
  return {{"TrainingJobName", name},
          {"RoleArn", "arn:aws:iam::000000000000:role/bench"},
          {"AlgorithmSpecification",
           {{"TrainingImage", "muster/host"},
            {"TrainingInputMode", "File"},
            {"ContainerEntrypoint", json::Array{"/bin/echo"}},
            {"ContainerArguments", json::Array{kSaid}}}},
          {"ResourceConfig", {{"InstanceCount", 2}, {"InstanceType", "ml.m5.large"}, {"VolumeSizeInGB", 1}}},
          {"OutputDataConfig", {{"S3OutputPath", "s3://bench/out"}}},
          {"StoppingCondition", {{"MaxRuntimeInSeconds", 60}}}};
}

struct Line {
  double time = 0;      // read by the runner, unix ms
  double ingested = 0;  // unix ms
};

double number(const json::Object& object, std::string_view name) {
  return json::opt_double(object, name)
      .value_or(static_cast<double>(json::opt_int(object, name).value_or(0)));
}

class Bench {
 public:
  Bench(cli::Client client, std::string data) : client_(std::move(client)), data_(std::move(data)) {}

  // Milliseconds to the first line.
  Result<double> muster(Hops& hops);
  Result<double> slurm();

 private:
  Result<std::optional<Line>> find_line(const std::string& job, std::string_view text);
  Result<json::Object> wait_completed(const std::string& job);
  Result<void> wait_free();
  Result<Hops> hops_of(const std::string& job, double submitted, double visible, const Line& line);

  cli::Client client_;
  const std::string data_;  // directory of the service
  int jobs_ = 0;
};

Result<std::optional<Line>> Bench::find_line(const std::string& job, std::string_view text) {
  const auto answer =
      client_.logs("FilterLogEvents", {{"logGroupName", kGroup}, {"logStreamNamePrefix", job + "/"}});
  if (!answer) {
    if (answer.error().code == ErrorCode::not_found) return std::nullopt;  // the first job makes the group
    return tl::unexpected(answer.error());
  }
  const auto* events = json::opt_array(*answer, "events");
  if (events == nullptr) return std::nullopt;
  for (const auto& event : *events) {
    const auto& object = event.as_object();
    if (json::opt_string(object, "message").value_or("") != text) continue;
    return Line{number(object, "timestamp"), number(object, "ingestionTime")};
  }
  return std::nullopt;
}

Result<json::Object> Bench::wait_completed(const std::string& job) {
  const auto until = Steady::now() + kJobMax;
  for (;;) {
    MUSTER_TRY(auto answer, client_.sagemaker("DescribeTrainingJob", {{"TrainingJobName", job}}));
    const auto status = json::opt_string(answer, "TrainingJobStatus").value_or("");
    if (status == "Completed") return answer;
    if (status == "Failed" || Steady::now() > until) {
      return fail(ErrorCode::internal, "job " + job + " is " + status + ": " +
                                           json::opt_string(answer, "FailureReason").value_or(""));
    }
    std::this_thread::sleep_for(Millis(10));
  }
}

Result<void> Bench::wait_free() {
  for (;;) {
    MUSTER_TRY(const auto answer, client_.get("/api/v1/nodes"));
    const auto* nodes = json::opt_array(answer, "nodes");
    const auto is_free = [](const json::Value& node) { return !node.as_object().contains("job"); };
    if (nodes != nullptr && std::all_of(nodes->begin(), nodes->end(), is_free)) return {};
    std::this_thread::sleep_for(Millis(10));
  }
}

// When the job entered `phase`, by its record in the state store: unix ms.
Result<std::map<domain::Phase, double>> phases_of(const std::string& data, const std::string& name) {
  MUSTER_TRY(auto database,
             sqlite::Database::open(data + "/state/state.db", {.create = false, .read_only = true}));
  MUSTER_TRY(auto query, database.prepare("SELECT version, body FROM record WHERE kind = ?"));
  query.bind(1, static_cast<std::int64_t>(domain::RecordKind::job));
  for (;;) {
    MUSTER_TRY(const bool row, query.step());
    if (!row) return fail(ErrorCode::not_found, "the state store has no job " + name);
    MUSTER_TRY(const auto record, wire::decode_record(domain::RecordKind::job,
                                                      static_cast<int>(query.integer(0)), query.text(1)));
    const auto& job = std::get<domain::Job>(record);
    if (job.name != name) continue;
    std::map<domain::Phase, double> entered;
    for (const auto& change : job.history)
      entered.try_emplace(change.phase, static_cast<double>(change.at.unix_ms));
    return entered;
  }
}

// The first lines of the two streams (the notice) are stamped when their runner is up.
Result<Hops> Bench::hops_of(const std::string& job, double submitted, double visible, const Line& line) {
  MUSTER_TRY(auto entered, phases_of(data_, job));
  MUSTER_TRY(const auto events,
             client_.logs("FilterLogEvents", {{"logGroupName", kGroup}, {"logStreamNamePrefix", job + "/"}}));
  std::map<std::string, double> up;  // by stream: its first line
  for (const auto& event : *json::opt_array(events, "events")) {
    const auto& object = event.as_object();
    up.try_emplace(json::opt_string(object, "logStreamName").value_or(""), number(object, "timestamp"));
  }
  if (up.size() != 2) return fail(ErrorCode::internal, "job " + job + " has not two log streams");
  const double both = std::max(up.begin()->second, up.rbegin()->second);
  const double times[] = {submitted, entered[domain::Phase::launching],
                          both,      entered[domain::Phase::ready],
                          line.time, line.ingested,
                          visible};
  Hops hops;
  for (std::size_t i = 1; i < std::size(times); ++i) hops.push_back(times[i] - times[i - 1]);
  hops.push_back(entered[domain::Phase::running] - line.time);
  return hops;
}

double unix_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<double> Bench::muster(Hops& hops) {
  const auto job = "bench-" + std::to_string(++jobs_);
  const auto submitted = unix_ms();
  const auto start = Steady::now();
  MUSTER_CHECK(client_.sagemaker("CreateTrainingJob", job_request(job)));
  std::optional<Line> line;
  while (!line) {
    MUSTER_TRY(line, find_line(job, kSaid));
    if (!line) std::this_thread::sleep_for(Millis(1));
    if (Steady::now() > start + kJobMax) return fail(ErrorCode::timeout, job + " said nothing in a minute");
  }
  const double took = ms_since(start);
  const double visible = unix_ms();
  MUSTER_CHECK(wait_completed(job));
  MUSTER_TRY(hops, hops_of(job, submitted, visible, *line));
  MUSTER_CHECK(wait_free());
  return took;
}

Result<double> Bench::slurm() {
  const auto start = Steady::now();
  MUSTER_TRY(auto child, Child::start({"srun", "-N2", "/bin/echo", kSaid}));
  MUSTER_TRY(const auto first, child.read());
  const double took = ms_since(start);
  for (;;) {
    MUSTER_TRY(const auto rest, child.read());
    if (rest.empty()) break;
  }
  if (const int code = child.wait(); code != 0 || first.empty())
    return fail(ErrorCode::internal, "srun ended with " + std::to_string(code));
  for (;;) {
    MUSTER_TRY(auto queue, Child::start({"squeue", "-h", "-o", "%i"}));
    MUSTER_TRY(const auto jobs, queue.read());
    if (queue.wait() == 0 && jobs.empty()) return took;
  }
}

// What a command line pays before it can send anything: the start of `muster`.
Result<double> start_of_muster() {
  const auto start = Steady::now();
  MUSTER_TRY(auto child, Child::start({program("muster"), "version"}));
  MUSTER_CHECK(child.read());
  const double took = ms_since(start);
  child.wait();
  return took;
}

Result<void> measure(int runs) {
  const bool with_slurm = std::getenv("SLURM_CONF") != nullptr;
  std::printf("%s\n", describe_machine().c_str());
  MUSTER_TRY(const auto server, Server::start(2));
  MUSTER_TRY(auto client, cli::Client::create(server.endpoint()));
  Bench bench(std::move(client), server.folder() + "/data");
  std::vector<double> ours, theirs, starts;
  std::vector<std::vector<double>> by_hop(std::size(kHops));
  for (int run = -1; run < runs; ++run) {  // the first is not counted
    Hops hops;
    MUSTER_TRY(const auto took, bench.muster(hops));
    std::optional<double> peer;
    if (with_slurm) {
      MUSTER_TRY(peer, bench.slurm());
    }
    MUSTER_TRY(const auto started, start_of_muster());
    if (run < 0) continue;
    starts.push_back(started);
    ours.push_back(took);
    if (peer) theirs.push_back(*peer);
    for (std::size_t i = 0; i < hops.size(); ++i) by_hop[i].push_back(hops[i]);
  }
  std::printf("submit to first line, %d runs, median [quartiles]\n", runs);
  std::printf("  muster         %s ms\n", to_string(summarize(ours)).c_str());
  for (std::size_t i = 0; i < by_hop.size(); ++i)
    std::printf("    %-32s %s ms\n", kHops[i], to_string(summarize(by_hop[i])).c_str());
  std::printf("  start of the program `muster`, which srun pays and an SDK does not  %s ms\n",
              to_string(summarize(starts)).c_str());
  if (!with_slurm) {
    std::printf("  srun           not measured: SLURM_CONF is not set\n");
    return {};
  }
  std::printf("  srun -N2       %s ms\n", to_string(summarize(theirs)).c_str());
  std::printf("  muster / srun  %s\n", to_string(summarize_ratio(ours, theirs), 2).c_str());
  return {};
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 20;
  if (argc > 2 || runs < 1) {
    std::fprintf(stderr, "usage: bench_latency [RUNS]\n");
    return 2;
  }
  const auto done = muster::bench::measure(runs);
  if (!done) std::fprintf(stderr, "bench_latency: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
