// musterd: the control plane and its APIs on one port. Wiring only.
//
// Order of construction is order of dependency: the stores, the service, what answers requests. The end goes
// service first, so that the requests that wait for it (long polls, commits) are answered `unavailable`; then
// the server, which lets them go out; the stores come last, when nothing uses them any more. SIGTERM,
// SIGINT and SIGHUP end musterd and leave jobs running.
#include <signal.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "address.h"
#include "api/logs/logs.h"
#include "api/router/router.h"
#include "api/sagemaker/sagemaker.h"
#include "apps/config/config.h"
#include "base/notes.h"
#include "base/text.h"
#include "data/directory/directory.h"
#include "data/objectstore/object_store.h"
#include "engine/local/local_engine.h"
#include "engine/local/run_folder.h"
#include "service/running.h"
#include "store/sqlite/store.h"
#include "telemetry/logs/log_store.h"

namespace muster::app {
namespace {

constexpr const char* kVersion = MUSTER_VERSION;
constexpr Millis kStopGrace{5'000};
// Exit codes, as those of muster.
constexpr int kFailed = 1;
constexpr int kUsage = 2;
// Tried in turn at first start; below the ephemeral range, so that no outgoing connection holds them later.
constexpr std::uint16_t kFirstPort = 9650;
constexpr std::uint16_t kLastPort = 9749;

struct Arguments {
  std::string data = data::DataDirectory::default_path();
  std::string listen;  // as parse_address() reads it
  int nodes = 0;       // 0: as configured
  bool insecure = false;
  bool version = false;
};

// Launches that may still dial the address at which this directory was served.
int living_launches(const data::DataDirectory& directory) {
  const auto launches = engine::local::list_launches(directory.run());
  return static_cast<int>(std::count_if(launches.begin(), launches.end(), [&](const auto& launch) {
    return engine::local::is_occupied(directory.run() + "/" + to_string(launch));
  }));
}

Result<std::unique_ptr<net::Server>> listen(Address address, net::Handler& handler, Note note) {
  net::ServerOptions options;
  options.note = std::move(note);
  options.address = address.host;
  options.port = address.port;
  if (address.port != 0) {
    auto server = net::Server::start(options, handler);
    if (!server && server.error().code == ErrorCode::already_exists) {
      return fail(ErrorCode::already_exists, server.error().message + " with --listen ADDRESS:PORT");
    }
    return server;
  }
  for (auto port = kFirstPort; port <= kLastPort; ++port) {
    options.port = port;
    auto server = net::Server::start(options, handler);
    if (server || server.error().code != ErrorCode::already_exists) return server;
  }
  return fail(ErrorCode::already_exists, "ports 9650 to 9749 are all taken on " + address.host +
                                             "; choose one with --listen ADDRESS:PORT");
}

// Requests that come before everything is wired wait for nothing: they are told to retry.
class LateHandler final : public net::Handler {
 public:
  std::variant<net::Route, net::Response> route(const net::RequestHead& head) override {
    if (auto* handler = handler_.load()) return handler->route(head);
    net::Response response;
    response.status = 503;
    response.headers.set("Retry-After", "1");
    response.body = "musterd is starting\n";
    return response;
  }
  void set(net::Handler* handler) { handler_ = handler; }

 private:
  std::atomic<net::Handler*> handler_ = nullptr;
};

void set_up_log(const std::string& path) {
  auto file = std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, 16 << 20, 3);
  auto logger = std::make_shared<spdlog::logger>(
      "musterd", spdlog::sinks_init_list{file, std::make_shared<spdlog::sinks::stderr_color_sink_mt>()});
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

Result<void> ensure_root_key(service::Service& service, const api::Keyring& keyring,
                             const data::DataDirectory& directory, const Clock& clock) {
  if (directory.root_key()) return {};
  auto made = keyring.make_key("root", clock.now());
  MUSTER_TRY(const auto reply, service.call(control::AddAccessKey{made.record}));
  if (reply.error) return tl::unexpected(*reply.error);
  return directory.write_root_key({made.credentials.access_key, made.credentials.secret_key});
}

// What `muster down --now` has killed was stopped by a user, not lost. Said before the last reports of the
// dead come in, which would tell of killed commands.
void settle_killed(service::Service& service, const data::DataDirectory& directory) {
  for (const auto& launch : engine::local::killed_launches(directory.run())) {
    const auto reply = service.call(control::RankKilled{launch, "with the service by `muster down --now`"});
    if (!reply) spdlog::warn("{} will count as lost: {}", to_string(launch), reply.error().message);
  }
}

std::string runner_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string() + "/muster-runner";
}

// Blocks the signals that end musterd, in this and every later thread; returns a descriptor on which they
// arrive. SIGHUP, of a terminal that closes, is one of them, unless it was to be ignored (nohup).
UniqueFd stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  for (const int meaningless : {SIGPIPE, SIGUSR1, SIGUSR2}) ::signal(meaningless, SIG_IGN);
  return UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC));
}

void wait_for_stop(const UniqueFd& signals) {
  signalfd_siginfo info{};
  while (::read(signals.get(), &info, sizeof info) < 0 && errno == EINTR) {
  }
  spdlog::info("stopping on SIG{}; jobs keep running", ::sigabbrev_np(static_cast<int>(info.ssi_signo)));
}

void say_what_is_served(ports::Engine& engine, const std::string& url, const data::DataDirectory& directory) {
  const auto inventory = engine.inventory();
  if (!inventory) return;
  spdlog::info("musterd {} serves {} from {}, {} local nodes", kVersion, url, directory.path(),
               inventory->nodes.size());
  spdlog::info("in force for jobs: {}", join(inventory->isolation, "; "));
  for (const auto& missing : inventory->not_isolated) spdlog::warn("not in force for jobs: {}", missing);
}

Result<void> serve(const Arguments& arguments) {
  const auto signals = stop_signals();
  MUSTER_TRY(const auto directory, data::DataDirectory::open_or_create(arguments.data));
  MUSTER_TRY(const auto lock, directory.lock());
  MUSTER_CHECK(directory.write_pid(::getpid()));
  set_up_log(directory.log_file());
  MUSTER_CHECK(directory.check_complete());
  MUSTER_TRY(auto config, load_config(directory.configuration()));
  MUSTER_CHECK(directory.write_region(config.region));
  if (arguments.nodes != 0) config.nodes = arguments.nodes;
  MUSTER_TRY(const auto address, choose_address({.listen = arguments.listen,
                                                 .kept = directory.endpoint(),
                                                 .dialling = living_launches(directory),
                                                 .insecure = arguments.insecure}));

  const SystemClock clock;
  Notes notes([](std::string_view line) { spdlog::warn("{}", line); });
  const auto note = [&notes](std::string_view line) { notes.say(line); };
  LateHandler door;
  MUSTER_TRY(const auto server, listen(address, door, note));
  const auto url = "http://" + net::host_in_url(address.host) + ":" + std::to_string(server->port());
  MUSTER_CHECK(directory.write_endpoint(url));

  MUSTER_TRY(auto keyring, api::Keyring::load(directory.master_key()));
  MUSTER_TRY(const auto store, store::open_sqlite(directory.state()));
  MUSTER_TRY(const auto objects, objectstore::open({.directory = directory.objects(), .note = note}));
  MUSTER_TRY(const auto opened, telemetry::open_log_store(directory.logs()));
  for (const auto& notice : opened.notices) spdlog::warn("damaged log: {}", notice);
  const auto& logs = opened.store;
  MUSTER_TRY(const auto engine, engine::local::LocalEngine::create({.data_directory = directory.path(),
                                                                    .runner_program = runner_program(),
                                                                    .endpoint_url = url,
                                                                    .nodes = config.nodes,
                                                                    .user = config.user}));
  service::RunningOptions options;
  options.loop.note = note;
  options.on_fatal = [](const Error& error) {
    spdlog::critical("musterd cannot go on: {}; jobs keep running", error.message);
    ::kill(::getpid(), SIGTERM);
  };
  MUSTER_TRY(const auto service, service::start({*store, *engine, *logs, keyring, clock}, options));
  MUSTER_CHECK(ensure_root_key(*service, keyring, directory, clock));
  MUSTER_CHECK(directory.write_created());
  settle_killed(*service, directory);

  const auto model = api::Model::load();
  api::Authenticator authenticator(*service, keyring, clock, {config.account, config.region});
  const api::s3::S3Service s3(*objects, {.region = config.region, .endpoint_url = url});
  api::RunnerApi runner(*service, *logs, keyring, clock);
  api::ManageApi manage(*service, *objects,
                        {kVersion, directory.path(), [&] { return engine->inventory(); }});
  api::sagemaker::Options sagemaker;
  sagemaker.images = config.images;
  sagemaker.instance_types = config.instance_types;
  sagemaker.bucket_exists = [&](const std::string& bucket) { return objects->bucket(bucket).has_value(); };
  api::Router router(authenticator, {api::sagemaker::operations(*service, model, sagemaker),
                                     api::logs::operations(*logs, model), s3, runner, manage});
  door.set(&router);
  say_what_is_served(*engine, url, directory);
  wait_for_stop(signals);
  service->shut_down();
  server->stop(kStopGrace);
  door.set(nullptr);
  return {};
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "musterd serves the training APIs of SageMaker, CloudWatch Logs and S3 on one port.\n"
      "Usually started by `muster up`.");
  app.add_option("--data", arguments.data, "data directory")->capture_default_str();
  app.add_option(
      "--listen", arguments.listen,
      "ADDRESS[:PORT] or [IPV6][:PORT]; chosen at first start (127.0.0.1, first free of 9650-9749) and kept");
  app.add_option("--nodes", arguments.nodes,
                 "virtual nodes on this machine (default: local.nodes of muster.toml, else 2)")
      ->check(CLI::Range(1, 250));
  app.add_flag("--insecure", arguments.insecure, "listen beyond loopback without TLS");
  app.add_flag("--version", arguments.version, "print the version");
  app.footer("Example:\n  musterd --data /srv/muster --nodes 4");
  CLI11_PARSE(app, argc, argv);
  if (arguments.version) {
    std::cout << "musterd " << kVersion << "\n";
    return 0;
  }
  const auto served = serve(arguments);
  if (!served) {
    std::cerr << "musterd: " << served.error().message << "\n";
    return served.error().code == ErrorCode::invalid_argument ? kUsage : kFailed;
  }
  return 0;
}

}  // namespace
}  // namespace muster::app

int main(int argc, char** argv) { return muster::app::run(argc, argv); }
