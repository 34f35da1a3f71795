// Whole runners, each a process of its own (this program, started as `runner_test child ...`), against a fake
// control plane over HTTP. The object store is a folder.
#include "runner/runner.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>

#include "base/file.h"
#include "base/text.h"
#include "runner/report/spool.h"
#include "runner/testing/fake_control.h"
#include "wire/runner/messages.h"

extern char** environ;

namespace muster::runner {
namespace {

namespace fs = std::filesystem;
using testing::FakeControl;

// Buckets are folders below a root. Times are file times.
class FolderObjects final : public Objects {
 public:
  explicit FolderObjects(std::string root) : root_(std::move(root)) {}
  Result<std::vector<ObjectInfo>> list(const S3Location& prefix) override {
    const auto bucket = root_ + "/" + prefix.bucket;
    if (!fs::exists(bucket)) return fail(ErrorCode::not_found, "no bucket " + prefix.bucket);
    std::vector<ObjectInfo> out;
    for (const auto& entry : fs::recursive_directory_iterator(bucket)) {
      if (!entry.is_regular_file()) continue;
      const auto key = entry.path().lexically_relative(bucket).string();
      if (key.substr(0, prefix.key.size()) == prefix.key) out.push_back({key, entry.file_size(), {}, ""});
    }
    return out;
  }
  Result<void> download(const std::string& bucket, const std::vector<Download>& downloads,
                        const std::string& root, std::stop_token) override {
    for (const auto& download : downloads) {
      MUSTER_TRY(const auto content, read_file(root_ + "/" + bucket + "/" + download.object.key));
      const auto path = root + "/" + download.path;
      MUSTER_CHECK(make_directories(fs::path(path).parent_path().string()));
      MUSTER_CHECK(write_file_atomic(path, content));
    }
    return {};
  }
  Result<void> upload(const std::string& path, const S3Location& object, std::stop_token) override {
    const auto bucket = root_ + "/" + object.bucket;
    if (!fs::exists(bucket)) return fail(ErrorCode::not_found, "no bucket " + object.bucket);
    const auto to = bucket + "/" + object.key;
    MUSTER_CHECK(make_directories(fs::path(to).parent_path().string()));
    MUSTER_TRY(const auto content, read_file(path));
    return write_file_atomic(to, content);
  }
  Result<void> remove(const S3Location& object) override {
    fs::remove(root_ + "/" + object.bucket + "/" + object.key);
    return {};
  }

 private:
  std::string root_;
};

// A store that takes a listing and never answers it, until it is cancelled.
class SilentObjects final : public Objects {
 public:
  Result<std::vector<ObjectInfo>> list(const S3Location&) override {
    cancelled_.get_future().wait();
    return fail(ErrorCode::cancelled, "cancelled");
  }
  Result<void> download(const std::string&, const std::vector<Download>&, const std::string&,
                        std::stop_token) override {
    return fail(ErrorCode::unsupported, "");
  }
  Result<void> upload(const std::string&, const S3Location&, std::stop_token) override {
    return fail(ErrorCode::unsupported, "");
  }
  Result<void> remove(const S3Location&) override { return fail(ErrorCode::unsupported, ""); }
  void cancel() override { cancelled_.set_value(); }

 private:
  std::promise<void> cancelled_;
};

// Comes to the end of its patience with refusals at once.
const Patience::Options kHaste{.first_wait = Millis{1}, .last_wait = Millis{2}};

int child_main(const std::string& folder, std::unique_ptr<Objects> store, Patience::Options patience = {}) {
  Context context;
  context.patience = patience;
  context.folder = folder;
  context.opt_ml = folder + "/ml";
  context.names_resolve = false;
  context.home = "/tmp";
  context.make_objects = [&](const std::string&, const std::string&, CredentialsCache&) {
    return Result<std::unique_ptr<Objects>>(std::move(store));
  };
  const auto code = run(context);
  if (!code) std::fprintf(stderr, "runner: %s\n", code.error().message.c_str());
  return code ? *code : 1;
}

// Looks until it holds; false when it does not within 20 s.
bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 4000; ++i) {
    if (holds()) return true;
    ::usleep(5'000);
  }
  return false;
}

constexpr int kNoMounts = 77;  // exit code: this machine lets us mount nothing

// As a child whose /opt/ml is a disk of 2 MiB: a tmpfs in a mount namespace that ends with the process.
int child_on_small_disk(const std::string& folder, const std::string& store) {
  if (::unshare(CLONE_NEWNS) != 0) {
    const auto map = [](int id) { return "0 " + std::to_string(id) + " 1\n"; };
    const auto users = map(static_cast<int>(::getuid()));
    const auto groups = map(static_cast<int>(::getgid()));
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNoMounts;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << users;
    std::ofstream("/proc/self/gid_map") << groups;
  }
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", (folder + "/ml").c_str(), "tmpfs", 0, "size=2m") != 0) {
    return kNoMounts;
  }
  return child_main(folder, std::make_unique<FolderObjects>(store));
}

int child(const std::string& mode, const std::string& folder, const std::string& store) {
  auto objects = std::make_unique<FolderObjects>(store);
  if (mode == "child") return child_main(folder, std::move(objects));
  if (mode == "child-in-haste") return child_main(folder, std::move(objects), kHaste);
  if (mode == "child-with-silent-store") return child_main(folder, std::make_unique<SilentObjects>());
  return child_on_small_disk(folder, store);
}

class RunnerTest : public ::testing::Test {
 protected:
  ~RunnerTest() override {
    for (const auto pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  domain::NodeLaunch launch_of(const std::string& script, int rank = 0, int world = 1) {
    domain::NodeLaunch launch;
    launch.id = {domain::AttemptId{1}, rank, 1};
    launch.world = world;
    launch.node = "node-" + std::to_string(rank + 1);
    launch.attempt_created = Time{1};
    launch.endpoint_url = control_->url();
    launch.credentials_uri = "http://127.0.0.1:0/credentials";
    launch.address = "127.0.0.1";
    launch.interface = "lo";
    for (int r = 0; r < world; ++r) launch.hosts.push_back({domain::host_name(r), "127.0.0.1"});
    auto& work = launch.workload;
    work.job_name = "demo";
    work.region = "us-east-1";
    work.program = "host";
    work.entrypoint = {"bash", "-c", script};
    work.grace = Millis{500};
    return launch;
  }

  std::string folder_of(int rank) { return folder_ / ("run-" + std::to_string(rank)); }
  std::string ml(int rank = 0) { return folder_of(rank) + "/ml"; }

  pid_t begin(const domain::NodeLaunch& launch, std::string mode = "child") {
    const auto folder = folder_of(launch.id.rank);
    fs::remove_all(folder);
    fs::create_directories(folder + "/ml");
    std::ofstream(folder + "/launch.json") << wire::encode(launch);
    std::ofstream(folder + "/token") << "secret\n";
    fs::create_directories(folder_ / "store/b");
    auto self = fs::read_symlink("/proc/self/exe").string();
    auto run_folder = folder;
    auto store = folder_ / "store";
    char* argv[] = {self.data(), mode.data(), run_folder.data(), store.data(), nullptr};
    pid_t pid = 0;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);  // the fake control plane's sockets
    EXPECT_EQ(::posix_spawn(&pid, self.c_str(), &actions, nullptr, argv, environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    pids_.push_back(pid);
    return pid;
  }

  // Exit code of the runner, or -signal.
  int end(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    std::erase(pids_, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // Whether `text` is in the spool.
  bool spooled(const std::string& text, int rank = 0) {
    for (const auto& entry : fs::recursive_directory_iterator(folder_of(rank) + "/spool")) {
      if (!entry.is_regular_file()) continue;
      if (read_file(entry.path().string()).value_or("").find(text) != std::string::npos) return true;
    }
    return false;
  }

  int run_job(const std::string& script) { return end(begin(launch_of(script))); }

  TempDir folder_;
  std::unique_ptr<FakeControl> control_ = std::make_unique<FakeControl>();
  std::vector<pid_t> pids_;
};

TEST_F(RunnerTest, a_trivial_job_from_the_first_report_to_the_last) {
  auto launch = launch_of("echo hello; echo problem >&2; echo $RANK of $WORLD_SIZE $TRAINING_JOB_NAME");
  launch.notice = "no memory limit is enforced";
  EXPECT_EQ(end(begin(launch)), 0);
  EXPECT_EQ(control_->phases(), "ready running exited uploading uploaded finished");
  const auto text = control_->text();
  EXPECT_EQ(text.substr(0, 36), "muster: no memory limit is enforced\n");
  EXPECT_NE(text.find("hello\n"), std::string::npos);
  EXPECT_NE(text.find("problem\n"), std::string::npos);
  EXPECT_NE(text.find("0 of 1 demo\n"), std::string::npos);
  EXPECT_EQ(control_->exit_of().exit_code, 0);
  EXPECT_EQ(control_->exit_of().reason, "");
  const auto ms = static_cast<double>(control_->first_line_ns - control_->run_sent_ns) / 1e6;
  RecordProperty("run_to_first_line_ms", std::to_string(ms));
  std::printf("order to run -> first line acknowledged: %.1f ms\n", ms);
}

TEST_F(RunnerTest, the_barrier_holds_the_command) {
  control_->hold_barrier(true);
  const auto pid = begin(launch_of("echo now"));
  ASSERT_TRUE(control_->wait_for_phase(domain::RankPhase::ready));
  ASSERT_TRUE(control_->wait_until_heard());
  EXPECT_EQ(control_->phases(), "ready");
  control_->hold_barrier(false);
  EXPECT_EQ(end(pid), 0);
  EXPECT_EQ(control_->text(), "now\n");
}

TEST_F(RunnerTest, reasons_of_failures) {
  EXPECT_EQ(run_job("echo starting; echo ValueError: no such layer >&2; exit 3"), 0);
  EXPECT_EQ(control_->exit_of().exit_code, 3);
  EXPECT_EQ(control_->exit_of().reason, "exit code 3: ValueError: no such layer");
  control_ = std::make_unique<FakeControl>();
  EXPECT_EQ(run_job("echo out of luck > output/failure; echo bye > output/message; exit 1"), 0);
  EXPECT_EQ(control_->exit_of().reason, "out of luck\n");
  EXPECT_EQ(control_->exit_of().message, "bye\n");
  control_ = std::make_unique<FakeControl>();
  EXPECT_EQ(run_job("rm -rf output; mkdir output; ln -s /etc/passwd output/failure; kill -SEGV $$"), 0);
  EXPECT_FALSE(control_->exit_of().exit_code);
  EXPECT_EQ(control_->exit_of().reason, "killed by signal 11 (SIGSEGV)");
  control_ = std::make_unique<FakeControl>();
  auto launch = launch_of("");
  launch.workload.entrypoint = {};
  EXPECT_EQ(end(begin(launch)), 0);
  EXPECT_EQ(control_->exit_of().reason.substr(0, 33), "command \"train\" not found in PATH");
  EXPECT_NE(control_->text().find("muster: command \"train\" not found"), std::string::npos);
}

TEST_F(RunnerTest, stop_is_sigterm_then_sigkill) {
  auto pid = begin(launch_of("trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(control_->wait_for_line("up"));
  control_->request_stop(domain::Cause::user, Millis{10'000});
  EXPECT_EQ(end(pid), 0);
  EXPECT_NE(control_->text().find("saving"), std::string::npos);
  EXPECT_EQ(control_->exit_of().cause, domain::Cause::user);
  control_ = std::make_unique<FakeControl>();
  pid = begin(launch_of("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(control_->wait_for_line("up"));
  control_->request_stop(domain::Cause::user, Millis{100});
  EXPECT_EQ(end(pid), 0);
  EXPECT_EQ(control_->exit_of().signal, SIGKILL);
}

TEST_F(RunnerTest, the_maximum_run_time) {
  auto launch = launch_of("echo up; sleep 1000");
  launch.workload.max_runtime = Millis{200};
  EXPECT_EQ(end(begin(launch)), 0);
  EXPECT_EQ(control_->exit_of().cause, domain::Cause::limit);
  EXPECT_EQ(control_->exit_of().reason, "ran longer than the maximum run time of 200 ms");
}

bool alive(const std::string& pid) { return fs::exists("/proc/" + std::string(trim(pid))); }

TEST_F(RunnerTest, a_stale_launch_dies_with_everything_it_started) {
  const auto pid =
      begin(launch_of("(setsid sh -c 'echo $$ > stray; echo up; exec sleep 1000' &) ; sleep 1000"));
  ASSERT_TRUE(control_->wait_for_line("up"));
  control_->make_stale();
  EXPECT_EQ(end(pid), 3);
  EXPECT_FALSE(alive(read_file(ml() + "/stray").value()));
}

TEST_F(RunnerTest, what_the_command_leaves_behind_ends_with_it) {
  EXPECT_EQ(
      run_job(
          "(setsid sh -c 'echo $$ > stray; exec sleep 1000' &) ; while [ ! -s stray ]; do :; done; echo end"),
      0);
  EXPECT_FALSE(alive(read_file(ml() + "/stray").value()));
  EXPECT_EQ(control_->text(), "end\n");
}

TEST_F(RunnerTest, bytes_of_any_kind_and_long_lines) {
  EXPECT_EQ(
      run_job("printf 'a\\0\\377b\\n'; head -c 1000000 /dev/zero | tr '\\0' x; echo; printf 'no newline'"),
      0);
  const auto lines = control_->lines();
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0].text, std::string("a\0\377b", 4));
  EXPECT_EQ(lines[1].text.size() + lines[2].text.size() + lines[3].text.size() + lines[4].text.size(),
            1'000'000U);
  EXPECT_EQ(lines[5].text, "no newline");
}

TEST_F(RunnerTest, hundred_megabytes_of_log_at_full_speed) {
  EXPECT_EQ(run_job("yes $(printf '%0499d' 7) | head -n 200000; echo the end"), 0);
  const auto lines = control_->lines();
  ASSERT_EQ(lines.size(), 200'001U);
  EXPECT_EQ(lines.front().text.size(), 499U);
  EXPECT_EQ(lines.back().text, "the end");
}

TEST_F(RunnerTest, the_control_plane_goes_away_and_comes_back) {
  const auto pid =
      begin(launch_of("for i in $(seq 200); do echo line $i; echo $i > at; sleep 0.005; done; exit 5"));
  const auto at = [&](int line) {
    return eventually(
        [&] { return parse_int(trim(read_file(ml() + "/at").value_or(""))).value_or(0) >= line; });
  };
  ASSERT_TRUE(control_->wait_for_line("line 10"));
  control_->stop();
  ASSERT_TRUE(at(100));
  control_->start();
  ASSERT_TRUE(control_->wait_for_line("line 150"));
  control_->stop();
  ASSERT_TRUE(at(190));
  control_->start();
  EXPECT_EQ(end(pid), 0);
  std::string expected;
  for (int i = 1; i <= 200; ++i) expected += "line " + std::to_string(i) + "\n";
  EXPECT_EQ(control_->text(), expected);
  EXPECT_EQ(control_->phases(), "ready running exited uploading uploaded finished");
  EXPECT_EQ(control_->exit_of().exit_code, 5);
}

TEST_F(RunnerTest, a_killed_runners_log_is_drained_to_the_last_line) {
  const auto pid = begin(
      launch_of("echo 1; while [ ! -e go ]; do sleep 0.01; done; for i in 2 3 4 five; do echo $i; done; "
                "echo $$ > pid; touch done; exec sleep 1000"));
  ASSERT_TRUE(control_->wait_for_line("1"));
  control_->stop();
  std::ofstream(ml() + "/go").close();
  ASSERT_TRUE(eventually([&] { return fs::exists(ml() + "/done"); }));
  ASSERT_TRUE(eventually([&] { return spooled("five"); }));
  ::kill(pid, SIGKILL);
  EXPECT_EQ(end(pid), -SIGKILL);
  ::kill(static_cast<pid_t>(parse_int(trim(read_file(ml() + "/pid").value())).value()),
         SIGKILL);                                              // no pid namespace
  EXPECT_FALSE(drain(folder_of(0), {.give_up = Millis{100}}));  // nobody is there to take it
  control_->start();
  const auto drained = drain(folder_of(0), {.give_up = Millis{10'000}});
  ASSERT_TRUE(drained) << drained.error().message;
  EXPECT_EQ(control_->text(), "1\n2\n3\n4\nfive\n");
  EXPECT_EQ(*drained, "");
  control_->make_stale();
  EXPECT_TRUE(drain(folder_of(0), {.give_up = Millis{10'000}}));
}

TEST_F(RunnerTest, a_log_that_the_store_has_lost_goes_on_where_it_was) {
  const auto pid =
      begin(launch_of("echo 1; echo 2; while [ ! -e go ]; do sleep 0.01; done; echo 3; "
                      "echo $$ > pid; touch done; exec sleep 1000"));
  ASSERT_TRUE(control_->wait_for_line("2"));
  control_->lose_logs();
  std::ofstream(ml() + "/go").close();
  ASSERT_TRUE(control_->wait_for_line("3"));
  EXPECT_EQ(control_->text(), ports::lines_missing(2) + "\n3\n");
  ::kill(pid, SIGKILL);
  EXPECT_EQ(end(pid), -SIGKILL);
  ASSERT_TRUE(eventually([&] { return fs::exists(ml() + "/done"); }));
  ::kill(static_cast<pid_t>(parse_int(trim(read_file(ml() + "/pid").value())).value()), SIGKILL);
  control_->lose_logs();
  {  // what it had not sent
    const auto spool = LogSpool::open(folder_of(0) + "/spool");
    ASSERT_TRUE(spool);
    (*spool)->append(Time{1}, "4");
    (*spool)->flush();
  }
  const auto drained = drain(folder_of(0), {.give_up = Millis{10'000}});
  ASSERT_TRUE(drained) << drained.error().message;
  EXPECT_EQ(*drained, "");
  EXPECT_EQ(control_->text(), "1\n2\n3\n4\n");  // its spool still had them
}

TEST_F(RunnerTest, a_drain_gives_up_what_is_refused_for_good_and_ships_the_rest) {
  const auto pid = begin(launch_of("echo 1; exec sleep 1000"));
  ASSERT_TRUE(control_->wait_for_line("1"));
  ASSERT_TRUE(control_->wait_for_phase(domain::RankPhase::running));
  ::kill(pid, SIGKILL);
  EXPECT_EQ(end(pid), -SIGKILL);
  control_->refuse_logs();
  std::ofstream(folder_of(0) + "/spool/reports", std::ios::app)
      << wire::encode(domain::RankReport{.launch = {domain::AttemptId{1}, 0, 1},
                                         .number = control_->reports().back().number + 1,
                                         .phase = domain::RankPhase::exited})
      << '\n';
  const auto drained = drain(folder_of(0), kHaste);
  ASSERT_TRUE(drained) << drained.error().message;
  EXPECT_NE(drained->find("no logs today"), std::string::npos) << *drained;
  EXPECT_EQ(control_->phases(), "ready running exited");
}

TEST_F(RunnerTest, sigterm_to_the_runner_ends_the_job_and_the_log_is_complete) {
  const auto pid = begin(launch_of("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(control_->wait_for_line("up"));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(end(pid), 5);
  EXPECT_NE(control_->text().find("bye\n"), std::string::npos) << control_->text();
  EXPECT_EQ(control_->exit_of().cause, domain::Cause::infrastructure);
}

TEST_F(RunnerTest, a_log_that_is_refused_while_the_command_runs_holds_up_nothing) {
  control_->refuse_logs();
  const auto pid = begin(launch_of("while [ ! -e go ]; do sleep 0.01; done; echo unheard"), "child-in-haste");
  ASSERT_TRUE(control_->wait_for_phase(domain::RankPhase::running));
  ASSERT_TRUE(control_->wait_for_refusals(Patience::Options{}.refusals_max));
  std::ofstream(ml() + "/go").close();
  ASSERT_TRUE(control_->wait_for_phase(domain::RankPhase::finished));
  EXPECT_EQ(end(pid), 0);
  EXPECT_EQ(control_->exit_of().exit_code, 0);
  const auto farewell = control_->reports().back().message;
  EXPECT_NE(farewell.find("the log is not complete: "), std::string::npos) << farewell;
  EXPECT_NE(farewell.find("no logs today"), std::string::npos) << farewell;
}

TEST_F(RunnerTest, credentials_for_the_job) {
  EXPECT_EQ(run_job("python3 - <<'E'\n"
                    "import os, urllib.request, urllib.error\n"
                    "uri = os.environ['AWS_CONTAINER_CREDENTIALS_FULL_URI']\n"
                    "for token in (os.environ['AWS_CONTAINER_AUTHORIZATION_TOKEN'], 'wrong'):\n"
                    "  try:\n"
                    "    print(urllib.request.urlopen(urllib.request.Request(uri, headers={'Authorization': "
                    "token})).read().decode())\n"
                    "  except urllib.error.HTTPError as e:\n"
                    "    print(e.code)\n"
                    "E\n"),
            0);
  EXPECT_EQ(control_->text(),
            "{\"AccessKeyId\":\"AK\",\"SecretAccessKey\":\"SK\",\"Token\":\"T\",\"Expiration\":\"2099-01-"
            "01T00:00:00Z\"}\n401\n");
  EXPECT_EQ(control_->credentials_served, 1);
}

TEST_F(RunnerTest, two_ranks_with_data_checkpoints_and_a_model) {
  control_ = std::make_unique<FakeControl>(2);
  const auto bucket = folder_ / "store/b";
  for (const auto* name : {"in/a", "in/b", "in/c", "ck/step-1/w"}) {
    fs::create_directories(fs::path(bucket + "/" + name).parent_path());
    std::ofstream(bucket + "/" + name) << name;
  }
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 2; ++rank) {
    auto launch = launch_of(
        "ls input/data/train; cat input/config/hyperparameters.json checkpoints/step-1/w; echo; "
        "echo $RANK > model/rank-$RANK; mkdir -p checkpoints/step-2; echo $RANK > checkpoints/step-2/w$RANK",
        rank, 2);
    launch.workload.hyperparameters = {{"epochs", "3"}};
    launch.workload.channels.push_back({.name = "train",
                                        .s3_uri = "s3://b/in",
                                        .distribution = domain::Distribution::sharded_by_s3_key,
                                        .local_path = "/opt/ml/input/data/train"});
    launch.workload.checkpoint.s3_uri = "s3://b/ck";
    launch.workload.outputs.push_back({.name = "model",
                                       .local_path = "/opt/ml/model",
                                       .s3_uri = "s3://b/out/model.tar.gz",
                                       .form = domain::Output::Form::tar_gz,
                                       .merged = true});
    pids.push_back(begin(launch));
  }
  for (const auto pid : pids) EXPECT_EQ(end(pid), 0);
  EXPECT_EQ(control_->text(0), "a\nc\n{\"epochs\":\"3\"}ck/step-1/w\n");
  EXPECT_EQ(control_->text(1), "b\n{\"epochs\":\"3\"}ck/step-1/w\n");
  const auto reports = control_->reports(0);
  const auto ready = std::ranges::find(reports, domain::RankPhase::ready, &domain::RankReport::phase);
  ASSERT_NE(ready, reports.end());
  EXPECT_EQ(ready->message, "staged 8 B in 2 files; restored checkpoints: 11 B in 1 file");
  EXPECT_EQ(read_file(bucket + "/ck/step-2/w0").value() + read_file(bucket + "/ck/step-2/w1").value(),
            "0\n1\n");
  EXPECT_EQ(std::system(("tar -xzf " + bucket + "/out/model.tar.gz -C " + folder_.path()).c_str()), 0);
  EXPECT_EQ(read_file(folder_ / "rank-0").value() + read_file(folder_ / "rank-1").value(), "0\n1\n");
  EXPECT_FALSE(fs::exists(bucket + "/out/model.tar.gz.parts/algo-2/files.tar"));
}

TEST_F(RunnerTest, staging_and_upload_failures_end_the_job_with_the_reason) {
  auto launch = launch_of("echo never");
  launch.workload.channels.push_back(
      {.name = "train", .s3_uri = "s3://b/nothing/", .local_path = "/opt/ml/input/data/train"});
  EXPECT_EQ(end(begin(launch)), 0);
  EXPECT_EQ(control_->phases(), "exited uploading uploaded finished");
  EXPECT_EQ(control_->exit_of().reason, "channel \"train\": no object under s3://b/nothing/");
  EXPECT_EQ(control_->text(), "muster: channel \"train\": no object under s3://b/nothing/\n");
  control_ = std::make_unique<FakeControl>();
  launch = launch_of("true");
  launch.workload.outputs.push_back({.name = "model",
                                     .local_path = "/opt/ml/model",
                                     .s3_uri = "s3://missing/model.tar.gz",
                                     .form = domain::Output::Form::tar_gz,
                                     .merged = true});
  EXPECT_EQ(end(begin(launch)), 0);
  EXPECT_EQ(control_->exit_of().exit_code, 0);
  EXPECT_NE(control_->exit_of().reason.find("cannot upload \"model\" to s3://missing/model.tar.gz"),
            std::string::npos);
  control_ = std::make_unique<FakeControl>();
  launch = launch_of("true");
  launch.workload.outputs.push_back({.name = "o", .local_path = "/etc/../opt/ml/x", .s3_uri = "s3://b/x"});
  EXPECT_EQ(end(begin(launch)), 0);
  EXPECT_NE(control_->exit_of().reason.find("is not below /opt/ml"), std::string::npos)
      << control_->exit_of().reason;
}

TEST_F(RunnerTest, a_disk_that_is_full_or_fills_while_staging_is_the_jobs_reason) {
  auto launch = launch_of("echo never");
  const auto stage = [&](const std::string& prefix) {
    launch.workload.channels = {
        {.name = "train", .s3_uri = "s3://b/" + prefix, .local_path = "/opt/ml/input/data/train"}};
    return end(begin(launch, "child-on-small-disk"));
  };
  fs::create_directories(folder_ / "store/b/big");
  std::ofstream(folder_ / "store/b/big/x") << std::string(3 << 20, 'x');
  fs::create_directories(folder_ / "store/b/many");  // fits by its sizes, but each file takes a page
  for (int i = 0; i < 700; ++i) std::ofstream(folder_ / ("store/b/many/" + std::to_string(i))) << 'x';

  if (const int code = stage("big/"); code == kNoMounts) {
    GTEST_SKIP() << "this machine lets a test mount nothing, neither as root nor in a user namespace";
  }
  EXPECT_EQ(control_->exit_of().cause, domain::Cause::program);
  const auto large = control_->exit_of().reason;
  EXPECT_EQ(large.rfind("channel \"train\": the node's disk is full: ", 0), 0U) << large;
  EXPECT_NE(large.find("/train needs 3.0 MiB, "), std::string::npos) << large;

  control_ = std::make_unique<FakeControl>();
  launch.endpoint_url = control_->url();
  stage("many/");
  const auto small = control_->exit_of().reason;
  EXPECT_EQ(small.rfind("channel \"train\": the node's disk is full: ", 0), 0U) << small;
  EXPECT_NE(small.find("/train needs 700 B, 0 B are free"), std::string::npos) << small;
  EXPECT_EQ(control_->text().find("never"), std::string::npos);
}

TEST_F(RunnerTest, stop_while_staging) {
  auto launch = launch_of("echo never");
  control_->request_stop(domain::Cause::user, Millis{1'000});
  EXPECT_EQ(end(begin(launch)), 0);
  EXPECT_EQ(control_->phases().find("running"), std::string::npos) << control_->phases();
  EXPECT_EQ(control_->text(), "");
  EXPECT_EQ(control_->exit_of().cause, domain::Cause::user);
}

TEST_F(RunnerTest, stop_while_a_listing_is_not_answered) {
  auto launch = launch_of("echo never");
  launch.workload.channels.push_back(
      {.name = "train", .s3_uri = "s3://b/in", .local_path = "/opt/ml/input/data/train"});
  const auto pid = begin(launch, "child-with-silent-store");
  ASSERT_TRUE(control_->wait_for_phase(domain::RankPhase::preparing));
  control_->request_stop(domain::Cause::user, Millis{1'000});
  ASSERT_TRUE(control_->wait_for_phase(domain::RankPhase::finished));
  EXPECT_EQ(end(pid), 0);
  EXPECT_EQ(control_->exit_of().cause, domain::Cause::user);
}

}  // namespace
}  // namespace muster::runner

int main(int argc, char** argv) {
  if (argc == 4) return muster::runner::child(argv[1], argv[2], argv[3]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
