// Jobs accepted a second (signed CreateTrainingJob) from 32 connections, and Describes a second, each round
// beside the fdatasync rate of the disk that holds the state.
//
//   bench_jobs [ROUNDS]     default 7; a round is a second each of fdatasync, Create and Describe
//
// The nodes are held by a job that sleeps, so that what is accepted waits in the queue and nothing else runs.
// Clients and musterd share the machine. An fdatasync follows a write of 4 KiB to the end of a file.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "bench/support/server.h"
#include "bench/support/summary.h"
#include "cli/client.h"

namespace muster::bench {
namespace {

using Steady = std::chrono::steady_clock;

constexpr int kConnections = 32;
constexpr std::chrono::seconds kRound{1};

json::Object job_request(const std::string& name, int nodes) {
  return {
      {"TrainingJobName", name},
      {"RoleArn", "arn:aws:iam::000000000000:role/bench"},
      {"AlgorithmSpecification",
       {{"TrainingImage", "muster/host"},
        {"TrainingInputMode", "File"},
        {"ContainerEntrypoint", json::Array{"/bin/sleep"}},
        {"ContainerArguments", json::Array{"3600"}}}},
      {"ResourceConfig", {{"InstanceCount", nodes}, {"InstanceType", "ml.m5.large"}, {"VolumeSizeInGB", 1}}},
      {"OutputDataConfig", {{"S3OutputPath", "s3://bench/out"}}},
      {"StoppingCondition", {{"MaxRuntimeInSeconds", 3600}}}};
}

Result<double> fdatasync_rate(const std::string& folder) {
  MUSTER_TRY(const auto file, open_file(folder + "/sync", O_WRONLY | O_CREAT | O_TRUNC));
  const std::string page(4096, 'x');
  const auto start = Steady::now();
  int count = 0;
  while (Steady::now() < start + kRound) {
    MUSTER_CHECK(write_all(file.get(), page));
    if (::fdatasync(file.get()) != 0) return fail_errno("fdatasync");
    ++count;
  }
  return count / std::chrono::duration<double>(Steady::now() - start).count();
}

// The rate of call(client, n) with n = 0, 1, ... over all connections.
Result<double> request_rate(std::vector<cli::Client>& clients,
                            const std::function<Result<void>(cli::Client&, int)>& call) {
  std::atomic<int> next = 0;
  std::atomic<int> done = 0;
  std::vector<Result<void>> ends(clients.size());
  const auto start = Steady::now();
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      threads.emplace_back([&, i] {
        while (ends[i] && Steady::now() < start + kRound) {
          ends[i] = call(clients[i], next++);
          ++done;
        }
      });
    }
  }
  const double seconds = std::chrono::duration<double>(Steady::now() - start).count();
  for (auto& end : ends) MUSTER_CHECK(std::move(end));
  return done / seconds;
}

Result<void> measure(int rounds) {
  std::printf("%s\n", describe_machine().c_str());
  MUSTER_TRY(const auto server, Server::start(2));
  std::vector<cli::Client> clients;
  for (int i = 0; i < kConnections; ++i) {
    MUSTER_TRY(auto client, cli::Client::create(server.endpoint()));
    clients.push_back(std::move(client));
  }
  MUSTER_CHECK(clients.front().sagemaker("CreateTrainingJob", job_request("holder", 2)));
  int first = 0;
  std::vector<double> syncs, creates, describes;
  for (int round = -1; round < rounds; ++round) {  // the first is not counted
    MUSTER_TRY(const auto sync, fdatasync_rate(server.folder()));
    std::atomic<int> made = 0;
    const auto create = [&](cli::Client& client, int n) -> Result<void> {
      MUSTER_CHECK(client.sagemaker("CreateTrainingJob", job_request("j-" + std::to_string(first + n), 1)));
      ++made;
      return {};
    };
    MUSTER_TRY(const auto created, request_rate(clients, create));
    const auto describe = [&](cli::Client& client, int n) -> Result<void> {
      const auto name = "j-" + std::to_string(first + n % made);
      MUSTER_CHECK(client.sagemaker("DescribeTrainingJob", {{"TrainingJobName", name}}));
      return {};
    };
    MUSTER_TRY(const auto described, request_rate(clients, describe));
    first += made;
    if (round < 0) continue;
    syncs.push_back(sync);
    creates.push_back(created);
    describes.push_back(described);
  }
  std::printf("%d connections, %d rounds, %d jobs in the queue at the end, median [quartiles]\n",
              kConnections, rounds, first);
  std::printf("  fdatasync           %s /s\n", to_string(summarize(syncs), 0).c_str());
  std::printf("  CreateTrainingJob   %s /s\n", to_string(summarize(creates), 0).c_str());
  std::printf("  DescribeTrainingJob %s /s\n", to_string(summarize(describes), 0).c_str());
  std::printf("  creates for each fdatasync of the bare disk    %s\n",
              to_string(summarize_ratio(creates, syncs), 2).c_str());
  std::printf("  describes for each fdatasync of the bare disk  %s\n",
              to_string(summarize_ratio(describes, syncs), 2).c_str());
  return {};
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  if (argc > 2 || rounds < 1) {
    std::fprintf(stderr, "usage: bench_jobs [ROUNDS]\n");
    return 2;
  }
  const auto done = muster::bench::measure(rounds);
  if (!done) std::fprintf(stderr, "bench_jobs: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
