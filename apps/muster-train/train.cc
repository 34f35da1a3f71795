// train and config: the configuration from its sources, then an agent or a rank.

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "apps/muster-train/commands.h"
#include "apps/muster-train/sources.h"
#include "base/file.h"
#include "base/text.h"
#include "train/agent/agent.h"
#include "train/agent/process.h"
#include "train/comm/gloo/gloo.h"
#include "train/config/config.h"
#include "train/data/loader.h"
#include "train/loop/rank.h"
#include "train/plan/run_layout.h"

namespace muster::train {
namespace {

std::optional<std::string> variable(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Result<RankPlace> place_of(const TrainArguments& arguments) {
  RankPlace place{.rank = *arguments.rank,
                  .world = arguments.world,
                  .local_rank = arguments.local_rank,
                  .local_world = arguments.local_world,
                  .node = arguments.node,
                  .address = arguments.address,
                  .epoch = arguments.epoch};
  const auto colon = arguments.store.rfind(':');
  const auto port = colon == std::string::npos
                        ? std::nullopt
                        : parse_int(std::string_view(arguments.store).substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) {
    return fail(ErrorCode::invalid_argument, "--store " + arguments.store + ": expected HOST:PORT");
  }
  place.store_host = arguments.store.substr(0, colon);
  place.store_port = static_cast<std::uint16_t>(*port);
  return place;
}

int as_rank(const TrainArguments& arguments, const Config& config, RankPlace place) {
  return run_rank({.place = std::move(place),
                   .config = config,
                   .accepted = {arguments.accept.begin(), arguments.accept.end()},
                   .gemm_path = arguments.gemm_path,
                   .job = variable("TRAINING_JOB_NAME").value_or("muster-train"),
                   .has_agent = arguments.rank.has_value()});
}

// What every rank would refuse is refused once.
Result<void> check_before_start(const Config& config, const NodePlace& place) {
  const auto tokens = open_tokens(config.train_data, config.mixture);
  // What is wrong with the files, a rank says, which may be on another node.
  if (!tokens && tokens.error().code == ErrorCode::invalid_argument) return tl::unexpected(tokens.error());
  Config sized = config;
  if (tokens) {
    MUSTER_CHECK(Loader::create(**tokens, static_cast<std::uint64_t>(config.sequence),
                                static_cast<std::uint64_t>(config.seed), config.ignored_token));
  }
  if (sized.model.vocab == 0) sized.model.vocab = tokens ? (*tokens)->vocab_size() : 1 << 20;
  MUSTER_TRY(sized.model, validated(sized.model));
  MUSTER_CHECK(run_layout(sized, place.nodes * place.ranks));
  return {};
}

Result<AgentEnd> as_agent(const TrainArguments& arguments, const NodePlace& place) {
  std::unique_ptr<StoreServer> store;
  std::uint16_t port = place.master_port;
  if (place.nodes * place.ranks > 1 && place.node == 0) {
    MUSTER_TRY(UniqueFd listener, listen_for_store(place.master_host, place.master_port));
    MUSTER_TRY(store, start_store(place.master_host, std::move(listener)));
    port = store->port();
  }
  MUSTER_TRY(const std::string program, own_program());
  AgentOptions options{
      .command = {program}, .place = place, .store_host = place.master_host, .store_port = port};
  options.command.insert(options.command.end(), arguments.command_line.begin(), arguments.command_line.end());
  return run_agent(options);
}

// In a job the service shows the first 1,024 characters of this file as the reason.
void write_failure(const std::string& job_root, const std::string& text) {
  (void)make_directories(job_root + "/output");
  (void)write_file_atomic(job_root + "/output/failure", text.substr(0, 1024));
}

Result<int> train(const TrainArguments& arguments, const Sources& sources) {
  MUSTER_CHECK(check_accepted({arguments.accept.begin(), arguments.accept.end()}));
  if (arguments.rank) {
    MUSTER_TRY(RankPlace place, place_of(arguments));
    return as_rank(arguments, sources.config, std::move(place));
  }
  LaunchFlags flags = arguments.launch;
  if (!flags.nproc && sources.config.nproc > 0) flags.nproc = static_cast<int>(sources.config.nproc);
  std::string resources;
  if (sources.job.in_job) {
    auto text = read_regular_file(arguments.source.job_root + "/input/config/resourceconfig.json", 16 << 20);
    if (!text && text.error().code != ErrorCode::not_found) return tl::unexpected(text.error());
    if (text) resources = *std::move(text);
  }
  MUSTER_TRY(Place place, discover(flags, variable, resources));
  if (place.rank) {
    release_stop_signals();
    return as_rank(arguments, sources.config, *std::move(place.rank));
  }
  for (const auto& notice : sources.job.notices) std::cerr << "notice: " << notice << "\n";
  MUSTER_CHECK(check_before_start(sources.config, place.node));
  MUSTER_TRY(const AgentEnd end, as_agent(arguments, place.node));
  if (sources.job.in_job && !end.failure.empty()) write_failure(arguments.source.job_root, end.failure);
  // A stop that was asked for is success for the service, and "start me again" for others.
  if (end.code == kExitStopped && variable("TRAINING_JOB_NAME")) return kExitDone;
  return end.code;
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  if (!arguments.rank) hold_stop_signals();  // first: whatever comes from now on is a stop, see run_agent
  const auto sources = read_sources(arguments.source);
  const auto code = sources ? train(arguments, *sources) : Result<int>(tl::unexpected(sources.error()));
  if (code) return *code;
  std::cerr << "muster-train: " << code.error().message << "\n";
  struct stat status {};
  if (stat((arguments.source.job_root + "/input/config/hyperparameters.json").c_str(), &status) == 0) {
    write_failure(arguments.source.job_root, code.error().message);
  }
  return exit_code(code.error());
}

int config_command(const ConfigArguments& arguments) {
  const auto sources = read_sources(arguments.source);
  if (!sources) {
    std::cerr << "muster-train: " << sources.error().message << "\n";
    return kExitUsage;
  }
  if (arguments.explain) {
    std::cout << explain(sources->config);
    return kExitDone;
  }
  for (const auto& [key, value] : to_json(sources->config))
    std::cout << key << " = " << json::dump(value) << "\n";
  return kExitDone;
}

}  // namespace muster::train
