// muster: the command line. Wiring only: options here, commands in src/cli.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "apps/config/config.h"
#include "base/text.h"
#include "cli/jobs.h"
#include "cli/lifecycle.h"
#include "cli/objects.h"
#include "cli/prune.h"
#include "cli/submit.h"
#include "engine/local/doctor.h"
#include "engine/local/run_folder.h"
#include "store/sqlite/store.h"

namespace muster::app {
namespace {

constexpr const char* kExitCodes =
    "Exit codes:\n"
    "  0  done              3  no such job, object or service   10  the job ended Failed\n"
    "  1  failed            4  refused                          11  the job ended Stopped\n"
    "  2  wrong usage       5  the service does not answer      12  the job had not ended (wait)\n";

cli::DoctorCheck disk_check(const data::DataDirectory& directory) {
  const auto shortage = store::low_on_space(directory.state());
  if (!shortage) return {"ok", "disk", "there is room for the state of jobs in " + directory.state(), ""};
  return {"fail", "disk", "new jobs are refused until there is room: " + to_string(*shortage),
          "free space there, or remove what old jobs left with: " + cli::command_of(directory.path()) +
              " prune --objects"};
}

std::vector<cli::DoctorCheck> local_checks(const cli::Common& common) {
  engine::local::Options options;
  options.data_directory = std::filesystem::absolute(common.data).lexically_normal().string();
  options.runner_program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string() + "/muster-runner";
  const auto directory = data::DataDirectory::open_or_create(common.data);
  if (!directory)
    return {{"fail", "data directory", directory.error().message, "choose another with --data"}};
  const auto config = load_config(directory->configuration());
  if (!config)
    return {{"fail", "configuration", config.error().message, "correct it, then run muster doctor again"}};
  options.nodes = config->nodes;
  options.user = config->user;
  std::vector<cli::DoctorCheck> out = {disk_check(*directory)};
  for (const auto& check : engine::local::doctor(options)) {
    using State = engine::local::Check::State;
    out.push_back({check.state == State::ok     ? "ok"
                   : check.state == State::note ? "note"
                   : check.state == State::warn ? "warn"
                                                : "fail",
                   check.name, check.message, check.remedy});
  }
  return out;
}

class Commands {
 public:
  explicit Commands(CLI::App& app) : app_(app) {
    app.require_subcommand(1);
    app.fallthrough();
    app.add_option("--data", common_.data, "data directory of the service")
        ->envname("MUSTER_DATA")
        ->check([](const std::string& path) { return path.empty() ? "a folder is needed" : ""; })
        ->capture_default_str();
    app.add_option("--output", output_, "text or json")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    app.footer(std::string(kExitCodes) + "\n`muster COMMAND --help` shows each command with an example.");
    service();
    jobs();
    objects();
    others();
  }
  int result() const { return result_; }

 private:
  CLI::App* add(const std::string& name, const std::string& what, const std::string& example,
                std::function<int()> run) {
    auto* command = app_.add_subcommand(name, what);
    command->footer("Example:\n  " + example);
    command->callback([this, run = std::move(run)] {
      common_.as_json = output_ == "json";
      result_ = run();
    });
    return command;
  }

  CLI::App* named(const std::string& name, const std::string& what, const std::string& example,
                  std::function<int()> run) {
    auto* command = add(name, what, example, std::move(run));
    command->add_option("NAME", name_, "name of the job")->required();
    return command;
  }

  void service() {
    auto* up = add("up", "Start the service", "muster up --detach", [this] { return cli::up(common_, up_); });
    up->add_option("--listen", up_.listen, "ADDRESS[:PORT] (chosen at first start and kept)");
    up->add_option("--nodes", up_.nodes, "virtual nodes on this machine")->check(CLI::Range(1, 250));
    up->add_flag("--detach", up_.detach, "in the background");
    up->add_flag("--insecure", up_.insecure, "listen beyond loopback without TLS");
    auto* down = add("down", "Stop the service; refuses while jobs run unless told what to do with them",
                     "muster down --stop-jobs", [this] {
                       return cli::down(common_, down_, [](const std::string& run, Millis grace) {
                         return engine::local::kill_all(run, grace);
                       });
                     });
    auto* stop = down->add_flag("--stop-jobs", down_.stop_jobs, "stop every job and wait for its end");
    auto* leave =
        down->add_flag("--leave-jobs", down_.leave_jobs, "jobs run on; the next `muster up` finds them");
    auto* now = down->add_flag("--now", down_.now, "kill jobs and service within seconds");
    stop->excludes(leave, now);
    leave->excludes(now);
    auto* env = add("env", "Print exports for aws, boto3 and the SDKs", "eval \"$(muster env)\"",
                    [this] { return cli::print_environment(common_, sdk_); });
    env->add_flag("--sagemaker-sdk", sdk_, "also write the configuration file that the SageMaker SDKs need");
    add("doctor", "Say what this machine can isolate and what is missing", "muster doctor",
        [this] { return cli::doctor(common_, [this] { return local_checks(common_); }); });
    add("nodes", "Show the nodes and what each is doing", "muster nodes",
        [this] { return cli::show_nodes(common_); });
  }

  void submit(const std::string& name, cli::RequestKind kind, const std::string& what) {
    auto* command = add(name, what, "muster " + name + " job.toml --watch", [this, kind] {
      submit_.kind = kind;
      return cli::submit_file(common_, submit_);
    });
    command
        ->add_option("FILE", submit_.file,
                     "the request in TOML, with the API's member names; local paths in S3Uri are uploaded")
        ->required();
    command->add_flag("--watch", submit_.watch, "show the job until it ends");
    command->add_flag("--logs", submit_.show_logs, "with --watch: show the first node's log");
  }

  void jobs() {
    submit("train", cli::RequestKind::training, "Start a training job (CreateTrainingJob)");
    submit("process", cli::RequestKind::processing, "Start a processing job (CreateProcessingJob)");
    auto* list = add("jobs", "List jobs, newest first", "muster jobs --status InProgress",
                     [this] { return cli::list_jobs(common_, list_); });
    list->add_option("--status", list_.status, "only these")
        ->check(CLI::IsMember({"InProgress", "Completed", "Failed", "Stopping", "Stopped"}));
    list->add_option("--name", list_.contains, "only names that contain this");
    list->add_option("--limit", list_.limit, "at most")->check(CLI::Range(1, 10'000))->capture_default_str();
    named("job", "Show one job and its history", "muster job demo-7f3a",
          [this] { return cli::show_job(common_, name_); });
    auto* logs = named("logs", "Show a job's log", "muster logs demo-7f3a -f",
                       [this] { return cli::show_logs(common_, name_, logs_); });
    logs->add_flag("-f,--follow", logs_.follow, "go on until the job ends");
    logs->add_option("--host", logs_.host, "only this node, for example algo-2");
    named("stop", "Stop a job: SIGTERM, 120 s, SIGKILL", "muster stop demo-7f3a",
          [this] { return cli::stop_job(common_, name_); });
    auto* wait = named("wait", "Wait for the end of a job; the exit code tells how it ended",
                       "muster wait demo-7f3a && echo trained",
                       [this] { return cli::wait_job(common_, name_, timeout_); });
    wait->add_option("--timeout", timeout_, "seconds, then exit code 12; 0: for ever")
        ->check(CLI::Range(0, 10'000'000))
        ->capture_default_str();
  }

  void objects() {
    auto* copy = add("cp", "Copy between this machine and S3", "muster cp -r corpus s3://data/corpus",
                     [this] { return cli::copy_objects(common_, from_, to_, recursive_); });
    copy->add_option("FROM", from_, "local path or s3://BUCKET/KEY")->required();
    copy->add_option("TO", to_, "the other of the two; - prints an object")->required();
    copy->add_flag("-r,--recursive", recursive_, "folders and prefixes");
    auto* list = add("ls", "List buckets or objects", "muster ls s3://data/corpus/",
                     [this] { return cli::list_objects(common_, uri_, recursive_); });
    list->add_option("URI", uri_, "s3://BUCKET/PREFIX");
    list->add_flag("-r,--recursive", recursive_, "everything below");
    auto* remove = add("rm", "Remove objects", "muster rm -r s3://data/old/",
                       [this] { return cli::remove_objects(common_, uri_, recursive_); });
    remove->add_option("URI", uri_, "s3://BUCKET/KEY; a bucket alone only with -r")->required();
    remove->add_flag("-r,--recursive", recursive_, "every object whose key begins with KEY");
    auto* make =
        add("mb", "Make a bucket", "muster mb s3://data", [this] { return cli::make_bucket(common_, uri_); });
    make->add_option("URI", uri_, "s3://BUCKET")->required();
    auto* remove_bucket = add("rb", "Remove a bucket", "muster rb s3://data",
                              [this] { return cli::remove_bucket(common_, uri_, force_); });
    remove_bucket->add_option("URI", uri_, "s3://BUCKET")->required();
    remove_bucket->add_flag("--force", force_, "with all its objects");
  }

  void others() {
    auto* prune =
        add("prune", "Forget old jobs, their logs and abandoned uploads",
            "muster prune --older-than 30d --objects", [this] { return cli::prune(common_, prune_); });
    prune->add_option("--older-than", prune_.older_than, "how long ago they ended: 30m, 12h, 7d")
        ->capture_default_str();
    prune->add_flag(
        "--objects", prune_.objects,
        "first remove what training jobs wrote below their output paths, and the inputs that muster "
        "uploaded for them");
    add("version", "Print the version", "muster version", [this] {
      if (common_.as_json) {
        cli::print_json({{"version", MUSTER_VERSION}});
      } else {
        std::cout << "muster " << MUSTER_VERSION << "\n";
      }
      return static_cast<int>(cli::kOk);
    });
  }

  CLI::App& app_;
  int result_ = 0;
  cli::Common common_;
  std::string output_ = "text";
  cli::UpOptions up_;
  cli::DownOptions down_;
  cli::SubmitOptions submit_;
  cli::ListOptions list_;
  cli::LogsOptions logs_;
  cli::PruneOptions prune_;
  std::string name_, from_, to_, uri_;
  int timeout_ = 0;
  bool recursive_ = false;
  bool force_ = false;
  bool sdk_ = false;
};

// The parser itself only says that a command is missing.
int refuse_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const auto* command : app.get_subcommands({})) known.push_back(command->get_name());
  const auto near = closest(word, known);
  std::cerr << "muster: " << word << " is not a command"
            << (near.empty() ? "; `muster --help` lists them" : "; did you mean " + near + "?") << std::endl;
  return cli::kUsage;
}

int run(int argc, char** argv) {
  CLI::App app("Muster trains foundation models on machines you own, through the APIs you already use.");
  const Commands commands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const auto words = app.remaining();
    if (error.get_exit_code() != 0 && app.get_subcommands().empty() && !words.empty()) {
      return refuse_command(app, words.front());
    }
    if (error.get_exit_code() != 0 && app.get_subcommands().empty() && argc == 1) {
      std::cerr << "muster: a command is missing; `muster --help` lists them" << std::endl;
      return cli::kUsage;
    }
    return app.exit(error) == 0 ? 0 : static_cast<int>(cli::kUsage);
  } catch (const std::exception& error) {  // of the file system library, mostly
    return cli::print_error({ErrorCode::internal, error.what()});
  }
  if (commands.result() == cli::kOk && !std::cout.flush()) {
    return cli::print_error({ErrorCode::io, "the output could not be written; is the disk full?"});
  }
  return commands.result();
}

}  // namespace
}  // namespace muster::app

int main(int argc, char** argv) { return muster::app::run(argc, argv); }
