#include "cli/lifecycle.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <set>
#include <thread>

#include "base/text.h"
#include "cli/jobs.h"
#include "cli/output.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kServicePoll{20};
constexpr std::size_t kSaidMax = 64 << 10;  // bytes of what a musterd that starts says
constexpr Millis kNowGrace{2'000};
constexpr Millis kStopAllMax{900'000};
constexpr Millis kStopAllSay{10'000};  // between two lines of progress
constexpr Millis kStopAllPoll{200};

std::string own_folder() { return fs::read_symlink("/proc/self/exe").parent_path().string(); }

bool is_free(const data::DataDirectory& directory) {
  const auto lock = directory.lock();
  return lock || lock.error().code != ErrorCode::failed_precondition;
}

// The musterd that serves the directory: it holds the lock, to its very end (a zombie does not).
std::optional<int> running_musterd(const data::DataDirectory& directory) {
  return is_free(directory) ? std::nullopt : directory.pid();
}

bool wait_until(std::chrono::milliseconds longest, const std::function<bool()>& done) {
  const auto deadline = steady_clock::now() + longest;
  while (!done()) {
    if (steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kServicePoll);
  }
  return true;
}

std::vector<std::string> musterd_command(const Common& common, const UpOptions& options) {
  std::vector<std::string> command = {own_folder() + "/musterd", "--data", common.data};
  if (!options.listen.empty()) command.insert(command.end(), {"--listen", options.listen});
  if (options.nodes != 0) command.insert(command.end(), {"--nodes", std::to_string(options.nodes)});
  if (options.insecure) command.emplace_back("--insecure");
  return command;
}

[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  std::cerr << "muster: cannot start " << command[0] << ": " << std::generic_category().message(errno)
            << "\n";
  ::_exit(kFailed);
}

// Whether the shell finds this very program as `muster`.
bool is_in_path() {
  const char* folders = std::getenv("PATH");
  for (const auto folder : split(folders == nullptr ? "" : folders, ':')) {
    std::error_code error;
    const auto program = fs::path(folder) / "muster";
    if (::access(program.c_str(), X_OK) == 0) return fs::equivalent(program, "/proc/self/exe", error);
  }
  return false;
}

// `env` is typed first, and puts the program into PATH: so it alone is called by its place.
void print_service(const Common& common, const std::string& url, std::string_view what) {
  if (common.as_json) {
    json::Object out;
    out["endpoint"] = url;
    out["data_directory"] = fs::absolute(common.data).lexically_normal().string();
    print_json(out);
    return;
  }
  const auto command = command_of(common.data);
  const auto env = is_in_path() ? command : command_of(common.data, own_folder() + "/muster");
  std::cout << what << " " << url << "  data " << common.data << "\n"
            << "Next      eval \"$(" << env << " env)\"\n"
            << "          " << command << " nodes\n"
            << "Stop      " << command << " down\n";
}

// ADDRESS without a port, or with port 0, is content with any.
bool serves_on(std::string_view url, const std::string& listen) {
  const auto wanted = "http://" + (listen.ends_with(":0") ? listen.substr(0, listen.size() - 2) : listen);
  return url == wanted || url.starts_with(wanted + ":");
}

// What was asked of a service that runs already and is otherwise: " --nodes 4"; empty when it is so.
std::string unmet(const UpOptions& options, const Endpoint& endpoint, std::optional<std::size_t> nodes) {
  std::string out;
  if (!options.listen.empty() && !serves_on(endpoint.url, options.listen))
    out += " --listen " + options.listen;
  if (options.nodes != 0 && nodes != static_cast<std::size_t>(options.nodes))
    out += " --nodes " + std::to_string(options.nodes);
  return out;
}

std::optional<std::size_t> count_nodes(const Endpoint& endpoint) {
  auto client = Client::create(endpoint);
  const auto answer = client ? client->get("/api/v1/nodes") : tl::unexpected(client.error());
  const auto* nodes = answer ? json::opt_array(*answer, "nodes") : nullptr;
  return nodes == nullptr ? std::nullopt : std::optional(nodes->size());
}

// `up` of a service that runs already: it is left as it is, and refused when another was asked for.
int up_again(const Common& common, const UpOptions& options, const Endpoint& endpoint, int pid) {
  const auto nodes = count_nodes(endpoint);
  const auto wanted = unmet(options, endpoint, nodes);
  if (wanted.empty()) {
    print_service(common, endpoint.url, "Already serving (process " + std::to_string(pid) + ")");
    return kOk;
  }
  const auto command = command_of(common.data);
  const auto has =
      nodes ? " with " + std::to_string(*nodes) + (*nodes == 1 ? " node" : " nodes") : std::string();
  return print_error({ErrorCode::failed_precondition,
                      "the service already runs on " + endpoint.url + has + ", which" + wanted +
                          " would change; nothing was changed. Restart it: " + command + " down && " +
                          command + " up --detach" + wanted});
}

// What a job can do to this machine and to other jobs: said when the service starts, so that nobody has to
// ask.
void print_isolation(const Common& common, const Endpoint& endpoint) {
  auto client = Client::create(endpoint);
  const auto facts = client ? client->get("/api/v1/service") : tl::unexpected(client.error());
  const auto* lines = facts ? json::opt_array(*facts, "in_words") : nullptr;
  if (lines == nullptr) return;  // it serves; `muster doctor` says the same
  std::string_view label = "Safety    ";
  for (const auto& line : json::string_list(*lines)) {
    std::cout << label << line << "\n";
    label = "          ";
  }
  std::cout << label << "In detail: " << command_of(common.data) << " doctor\n";
}

bool answers(const data::DataDirectory& directory) {
  const auto endpoint = endpoint_of(directory);
  auto client = endpoint ? Client::create(*endpoint) : tl::unexpected(endpoint.error());
  return client && client->answers();
}

// The musterd that serves the directory, once it answers; nullopt when none does. A held lock alone does not
// tell: one that was just killed keeps it a moment longer, one that starts has it already.
Result<std::optional<int>> await_serving(const data::DataDirectory& directory, Millis longest) {
  std::optional<int> serving;
  const bool settled = wait_until(longest, [&] {
    if (is_free(directory)) return true;
    serving = answers(directory) ? running_musterd(directory) : std::nullopt;
    return serving.has_value();
  });
  if (settled) return serving;
  const auto pid = directory.pid();
  return fail(ErrorCode::timeout, "a musterd" + (pid ? " (process " + std::to_string(*pid) + ")" : "") +
                                      " holds " + directory.path() + " and has not answered for " +
                                      format_duration(longest) + "; see " + directory.log_file() +
                                      ", or end it with: " + command_of(directory.path()) + " down --now");
}

// Where a musterd that starts says what is wrong: musterd.start, or memory when the disk has no room for it.
Result<UniqueFd> open_output(const std::string& path) {
  auto file = open_file(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
  if (file && ::fallocate(file->get(), FALLOC_FL_KEEP_SIZE, 0, kSaidMax) == 0) return file;
  if (file && errno == EOPNOTSUPP) return file;
  UniqueFd memory(::memfd_create("musterd.start", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return fail_errno("memfd_create");
  if (::ftruncate(memory.get(), kSaidMax) != 0 || ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_GROW) != 0)
    return fail_errno("size of memory for what musterd says");
  return memory;
}

std::string read_output(int output) {
  std::string said(kSaidMax, '\0');
  const auto length = ::pread(output, said.data(), said.size(), 0);
  said.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  said.resize(std::min(said.size(), said.find('\0')));  // memory is as long as it may become
  auto text = std::string(trim(said));
  constexpr std::string_view kName = "musterd: ";
  return text.starts_with(kName) ? text.substr(kName.size()) : text;
}

// Starts musterd in a session of its own; answers its pid.
Result<int> spawn(const std::vector<std::string>& command, int output) {
  const int pid = ::fork();
  if (pid < 0) return fail_errno("fork");
  if (pid == 0) {
    ::setsid();
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, 0);
    ::dup2(output, 1);
    ::dup2(output, 2);
    become(command);
  }
  return pid;
}

// Why a musterd with wait status `status` ended before it served.
Error start_failure(int status, std::string said, const std::string& log_file) {
  if (WIFSIGNALED(status)) {
    const auto signal = WTERMSIG(status);
    return {ErrorCode::internal, "musterd was killed by signal " + std::to_string(signal) + " (" +
                                     ::strsignal(signal) + ") while it started" +
                                     (said.empty() ? "; see " + log_file : ": " + said)};
  }
  const auto code = WEXITSTATUS(status);
  if (said.empty()) {
    said = "musterd ended with exit code " + std::to_string(code) +
           " while it started and said nothing; see " + log_file;
  }
  return {code == kUsage ? ErrorCode::invalid_argument : ErrorCode::internal, std::move(said)};
}

int up_detached(const Common& common, const UpOptions& options, const data::DataDirectory& directory) {
  const auto output = open_output(directory.path() + "/musterd.start");
  if (!output) return print_error(output.error());
  const auto pid = spawn(musterd_command(common, options), output->get());
  if (!pid) return print_error(pid.error());
  bool ended = false;
  int status = 0;
  const bool served = wait_until(options.start_max, [&] {
    ended = ::waitpid(*pid, &status, WNOHANG) == *pid;
    return ended || (directory.pid() == *pid && answers(directory));
  });
  if (ended) return print_error(start_failure(status, read_output(output->get()), directory.log_file()));
  if (!served) {
    return print_error(
        {ErrorCode::internal, "musterd (process " + std::to_string(*pid) + ") did not answer within " +
                                  format_duration(options.start_max) + "; see " + directory.log_file()});
  }
  print_service(common, directory.endpoint().value_or(""), "Serving  ");
  if (const auto endpoint = endpoint_of(directory); endpoint && !common.as_json)
    print_isolation(common, *endpoint);
  return kOk;
}

}  // namespace

int up(const Common& common, const UpOptions& options) {
  const auto directory = data::DataDirectory::open_or_create(common.data);
  if (!directory) return print_error(directory.error());
  const auto serving = await_serving(*directory, options.start_max);
  if (!serving) return print_error(serving.error());
  if (*serving) {
    const auto endpoint = endpoint_of(*directory);
    return endpoint ? up_again(common, options, *endpoint, **serving) : print_error(endpoint.error());
  }
  if (options.detach) return up_detached(common, options, *directory);
  become(musterd_command(common, options));
}

namespace {

Result<std::vector<JobFacts>> live_jobs(Client& client) {
  std::vector<JobFacts> out;
  for (const auto* status : {"InProgress", "Stopping"}) {
    ListOptions options;
    options.status = status;
    options.limit = 10'000;
    MUSTER_TRY(auto some, find_jobs(client, options));
    out.insert(out.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return out;
}

// "3 jobs (a, b, c)", at most ten by name.
std::string name_jobs(const std::vector<JobFacts>& jobs) {
  constexpr std::size_t kNamesMax = 10;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(jobs.size(), kNamesMax); ++i) names.push_back(jobs[i].name);
  const auto more = jobs.size() - names.size();
  return std::to_string(jobs.size()) + (jobs.size() == 1 ? " job (" : " jobs (") + join(names, ", ") +
         (more > 0 ? " and " + std::to_string(more) + " more" : "") + ")";
}

// How `down` ended: a sentence, or an object for programs.
int print_down(const Common& common, const std::string& sentence, bool stopped, int killed = 0) {
  if (common.as_json) {
    json::Object out;
    out["stopped"] = stopped;
    out["killed"] = killed;
    print_json(out);
  } else {
    std::cout << sentence << "\n";
  }
  return kOk;
}

int down_now(const Common& common, const data::DataDirectory& directory, std::optional<int> pid,
             const KillAll& kill_all) {
  // musterd first, so that it starts nothing again.
  if (pid) {
    ::kill(*pid, SIGTERM);
    const auto ended = [&] { return !running_musterd(directory); };
    if (!wait_until(kNowGrace, ended)) {
      ::kill(*pid, SIGKILL);
      wait_until(kNowGrace, ended);
    }
  }
  const auto killed = kill_all(directory.run(), kNowGrace);
  if (!killed) return print_error(killed.error());
  return print_down(common,
                    (pid ? "Stopped   musterd on " : "No musterd serves ") + directory.path() + ", killed " +
                        std::to_string(*killed) + (*killed == 1 ? " runner" : " runners"),
                    pid.has_value(), *killed);
}

// Stops every job and waits for the last one's end, which its grace and its uploads put off.
Result<void> stop_all(const Common& common, Client& client) {
  const auto say = [&](const std::string& text) {
    if (!common.as_json) std::cout << text << std::endl;
  };
  const auto begin = steady_clock::now();
  auto said = begin;
  std::set<std::pair<bool, std::string>> asked;
  for (;;) {
    MUSTER_TRY(const auto jobs, live_jobs(client));
    if (jobs.empty()) return {};
    for (const auto& job : jobs) {
      if (!asked.emplace(job.training, job.name).second) continue;
      const auto stopped = request_stop(client, job);
      // failed_precondition: it has ended meanwhile.
      if (!stopped && stopped.error().code != ErrorCode::failed_precondition) return stopped;
      say("Stopping  " + job.name);
    }
    const auto now = steady_clock::now();
    if (now - begin >= kStopAllMax) {
      return fail(ErrorCode::failed_precondition,
                  name_jobs(jobs) + " did not end within " + format_duration(kStopAllMax) +
                      " and musterd was left running; see: " + command_of(common.data) +
                      " job NAME; or kill everything with: " + command_of(common.data) + " down --now");
    }
    if (now - said >= kStopAllSay) {
      say("Waiting   for " + name_jobs(jobs));
      said = now;
    }
    std::this_thread::sleep_for(kStopAllPoll);
  }
}

// What happens to jobs before musterd ends, as the flags say: without one it is refused while there are any.
Result<void> settle_jobs(const Common& common, const data::DataDirectory& directory,
                         const DownOptions& options) {
  if (options.leave_jobs) return {};
  MUSTER_TRY(auto endpoint, endpoint_of(directory));
  MUSTER_TRY(auto client, Client::create(std::move(endpoint)));
  if (options.stop_jobs) return stop_all(common, client);
  MUSTER_TRY(const auto jobs, live_jobs(client));
  if (jobs.empty()) return {};
  return fail(ErrorCode::failed_precondition,
              name_jobs(jobs) + (jobs.size() == 1 ? " has" : " have") +
                  " not ended: add --stop-jobs to stop them first, --leave-jobs to let them run on, or --now "
                  "to kill everything");
}

}  // namespace

int down(const Common& common, const DownOptions& options, const KillAll& kill_all) {
  const auto directory = data::DataDirectory::open(common.data);
  if (!directory) return print_error(directory.error());
  const auto pid = running_musterd(*directory);
  if (options.now) return down_now(common, *directory, pid, kill_all);
  if (!pid) return print_down(common, "No musterd serves " + directory->path(), false);
  if (const auto settled = settle_jobs(common, *directory, options); !settled)
    return print_error(settled.error());
  ::kill(*pid, SIGTERM);
  if (!wait_until(std::chrono::seconds(20), [&] { return !running_musterd(*directory); })) {
    return print_error({ErrorCode::timeout, "musterd (process " + std::to_string(*pid) +
                                                ") did not end within 20 s; use --now to kill it"});
  }
  return print_down(common, "Stopped   musterd on " + directory->path(), true);
}

namespace {

// The first line that `command` prints.
std::string first_line(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {};
  std::array<char, 256> buffer{};
  const auto length = std::fread(buffer.data(), 1, buffer.size() - 1, pipe);
  ::pclose(pipe);
  const std::string text(buffer.data(), length);
  return text.substr(0, text.find('\n'));
}

// Command lines before 1.29 and 2.13 do not know AWS_ENDPOINT_URL.
bool ignores_endpoint_variable(const std::string& version) {
  constexpr std::string_view kName = "aws-cli/";
  if (version.rfind(kName, 0) != 0) return false;
  const auto parts = split(std::string_view(version).substr(kName.size()), '.');
  if (parts.size() < 2) return false;
  const auto major = parse_int(parts[0]).value_or(0);
  const auto minor = parse_int(parts[1]).value_or(0);
  return major == 1 ? minor < 29 : major == 2 && minor < 13;
}

Result<std::string> write_sdk_config(const Common& common) {
  MUSTER_TRY(auto session, open_session(common));
  MUSTER_CHECK(ensure_bucket(session));
  const auto path = session.directory.path() + "/sagemaker-sdk.yaml";
  MUSTER_CHECK(write_file_atomic(
      path,
      "SchemaVersion: '1.0'\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n"
      "      Session:\n        DefaultS3Bucket: " +
          session.bucket + "\n"));
  return path;
}

}  // namespace

int print_environment(const Common& common, bool sagemaker_sdk) {
  const auto directory = data::DataDirectory::open(common.data);
  if (!directory) return print_error(directory.error());
  const auto endpoint = endpoint_of(*directory);
  if (!endpoint) return print_error(endpoint.error());
  std::vector<std::pair<std::string, std::string>> variables = {
      {"MUSTER_DATA", directory->path()},
      {"AWS_ENDPOINT_URL", endpoint->url},
      {"AWS_ACCESS_KEY_ID", endpoint->credentials.access_key},
      {"AWS_SECRET_ACCESS_KEY", endpoint->credentials.secret_key},
      {"AWS_DEFAULT_REGION", endpoint->region},
      {"AWS_REGION", endpoint->region},
      {"AWS_EC2_METADATA_DISABLED", "true"},
  };
  if (sagemaker_sdk) {
    const auto path = write_sdk_config(common);
    if (!path) return print_error(path.error());
    variables.emplace_back("SAGEMAKER_USER_CONFIG_OVERRIDE", *path);
  }
  if (common.as_json) {
    json::Object out;
    for (const auto& [name, value] : variables) out[name] = value;
    print_json(out);
    return kOk;
  }
  std::cout << "unset AWS_SESSION_TOKEN AWS_PROFILE\n";
  for (const auto& [name, value] : variables)
    std::cout << "export " << name << "=" << shell_quoted(value) << "\n";
  std::cout << "case \":$PATH:\" in *:" << shell_quoted(own_folder())
            << ":*) ;; *) export PATH=" << shell_quoted(own_folder()) << ":\"$PATH\" ;; esac\n";
  if (const auto version = first_line("command -v aws >/dev/null && aws --version");
      ignores_endpoint_variable(version)) {
    std::cout << "# " << version.substr(0, version.find(' ')) << " ignores AWS_ENDPOINT_URL:\n"
              << "aws() { command aws --endpoint-url \"$AWS_ENDPOINT_URL\" \"$@\"; }\n";
  }
  return kOk;
}

int doctor(const Common& common, const std::function<std::vector<DoctorCheck>()>& checks) {
  const auto found = checks();
  bool failed = false;
  json::Array list;
  std::string text;  // sentences: too long for a table
  for (const auto& check : found) {
    failed = failed || check.state == "fail";
    text += check.state + std::string(check.state.size() < 6 ? 6 - check.state.size() : 1, ' ') + check.name +
            ": " + check.message + "\n";
    if (!check.remedy.empty()) text += "      remedy: " + check.remedy + "\n";
    json::Object entry;
    entry["state"] = check.state;
    entry["name"] = check.name;
    entry["message"] = check.message;
    entry["remedy"] = check.remedy;
    list.emplace_back(std::move(entry));
  }
  if (common.as_json) {
    json::Object out;
    out["checks"] = std::move(list);
    print_json(out);
  } else {
    std::cout << text;
  }
  return failed ? kFailed : kOk;
}

int show_nodes(const Common& common) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  const auto answer = session->client.get("/api/v1/nodes");
  if (!answer) return print_error(answer.error());
  if (common.as_json) {
    print_json(*answer);
    return kOk;
  }
  Table table({"NODE", "STATE", "CPUS", "MEMORY", "ADDRESS", "JOB", "MESSAGE"});
  for (const auto& entry : answer->at("nodes").as_array()) {
    const auto& node = entry.as_object();
    const auto job = json::opt_string(node, "job");
    const bool healthy = json::opt_bool(node, "healthy").value_or(false);
    table.add(
        {json::opt_string(node, "name").value_or(""),
         !healthy ? "unhealthy"
         : job    ? "busy"
                  : "free",
         std::to_string(json::opt_int(node, "cpus").value_or(0)),
         format_bytes(static_cast<std::uint64_t>(json::opt_int(node, "memory_bytes").value_or(0))),
         json::opt_string(node, "address").value_or(""),
         job ? *job + " (algo-" + std::to_string(json::opt_int(node, "rank").value_or(0) + 1) + ")" : "-",
         json::opt_string(node, "message").value_or("")});
  }
  std::cout << table.text();
  return kOk;
}

}  // namespace muster::cli
