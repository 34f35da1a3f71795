#include "cli/lifecycle.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <mutex>
#include <utility>

#include "cli/output.h"

namespace muster::cli {
namespace {

// A process that holds the lock of a data directory until SIGTERM, as musterd does.
class Holder {
 public:
  explicit Holder(const data::DataDirectory& directory) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto lock = directory.lock();
      if (!lock || ::write(ready[1], "x", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    EXPECT_TRUE(directory.write_pid(pid_));
  }
  // The signal that ended it; without one it is killed.
  int end() {
    int status = 0;
    if (std::exchange(ended_, true)) return 0;
    if (::waitpid(pid_, &status, WNOHANG) == 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
    }
    return WTERMSIG(status);
  }
  ~Holder() { end(); }

 private:
  int pid_ = 0;
  bool ended_ = false;
};

// A service to which somebody submits job "late" just after `lists` lists were asked for. Says what it was
// asked to stop.
class LateJob final : public net::Handler {
 public:
  explicit LateJob(int lists) : lists_left_(lists) {
    auto server = net::Server::start({}, *this);
    EXPECT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  std::vector<std::string> stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  std::variant<net::Route, net::Response> route(const net::RequestHead& head) override {
    net::Route route;
    route.handle = [this, target = std::string(head.headers.get("X-Amz-Target"))](net::Request& request) {
      return handle(target, request.body);
    };
    return route;
  }

 private:
  net::Response handle(const std::string& target, const std::string& body) {
    const std::lock_guard lock(mutex_);
    net::Response response;
    const auto asked = json::parse_object(body).value();
    if (target == "SageMaker.StopTrainingJob") {
      stopped_.push_back(json::opt_string(asked, "TrainingJobName").value_or(""));
      response.body = "{}";
      return response;
    }
    const bool training = target == "SageMaker.ListTrainingJobs";
    const bool running = json::opt_string(asked, "StatusEquals") == "InProgress";
    const bool there = lists_left_-- <= 0 && training && running && stopped_.empty();
    json::Array jobs;
    if (there) {
      jobs.emplace_back(json::Object{
          {"TrainingJobName", "late"}, {"TrainingJobStatus", "InProgress"}, {"CreationTime", 1}});
    }
    response.body =
        json::dump(json::Object{{training ? "TrainingJobSummaries" : "ProcessingJobSummaries", jobs}});
    return response;
  }

  std::mutex mutex_;
  int lists_left_;
  std::vector<std::string> stopped_;
  std::unique_ptr<net::Server> server_;
};

// A service that refuses the key it is asked with, and does something at each question.
class Stranger final : public net::Handler {
 public:
  explicit Stranger(std::function<void()> asked) : asked_(std::move(asked)) {
    auto server = net::Server::start({}, *this);
    EXPECT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  std::variant<net::Route, net::Response> route(const net::RequestHead&) override {
    asked_();
    net::Response response;
    response.status = 403;
    response.body = R"({"__type":"InvalidClientTokenId"})";
    return response;
  }

 private:
  std::function<void()> asked_;
  std::unique_ptr<net::Server> server_;
};

class DownTest : public ::testing::Test {
 protected:
  int down_with(const DownOptions& options, LateJob& service) {
    EXPECT_TRUE(directory_.write_endpoint(service.url()));
    EXPECT_TRUE(directory_.write_region("us-east-1"));
    EXPECT_TRUE(directory_.write_root_key({"AK", "secret"}));
    return down({.data = directory_.path()}, options, [](const std::string&, Millis) -> Result<int> {
      ADD_FAILURE() << "nothing is to be killed";
      return 0;
    });
  }
  TempDir folder_;
  data::DataDirectory directory_ = data::DataDirectory::open_or_create(folder_ / "data").value();
  Holder musterd_{directory_};  // before the service, which has threads
};

constexpr int kListsOfOneLook = 4;  // training and processing jobs, InProgress and Stopping

TEST_F(DownTest, AJobThatCameAfterTheLookIsNotStopped) {
  LateJob service(kListsOfOneLook);
  EXPECT_EQ(down_with({}, service), kOk);
  EXPECT_EQ(service.stopped(), std::vector<std::string>{});
  EXPECT_EQ(musterd_.end(), SIGTERM);
}

TEST_F(DownTest, WithoutAFlagItIsRefusedWhileThereAreJobs) {
  LateJob service(0);
  EXPECT_EQ(down_with({}, service), kRefused);
  EXPECT_EQ(service.stopped(), std::vector<std::string>{});
  EXPECT_EQ(musterd_.end(), SIGKILL);  // it was left running
}

TEST_F(DownTest, StopJobsStopsThem) {
  LateJob service(0);
  EXPECT_EQ(down_with({.stop_jobs = true}, service), kOk);
  EXPECT_EQ(service.stopped(), std::vector<std::string>{"late"});
  EXPECT_EQ(musterd_.end(), SIGTERM);
}

class UpTest : public ::testing::Test {
 protected:
  // Exit code and what it said to stderr. There is no musterd beside the test: to start one is an error.
  std::pair<int, std::string> up_with(Millis start_max) {
    testing::internal::CaptureStderr();
    const auto code = up({.data = directory_.path()}, {.detach = true, .start_max = start_max});
    return {code, testing::internal::GetCapturedStderr()};
  }
  TempDir folder_;
  data::DataDirectory directory_ = data::DataDirectory::open_or_create(folder_ / "data").value();
};

TEST_F(UpTest, AHolderThatDoesNotAnswerIsNamed) {
  Holder musterd(directory_);
  const auto [code, said] = up_with(Millis{60});
  EXPECT_EQ(code, kUnavailable);
  EXPECT_NE(said.find("(process " + std::to_string(*directory_.pid()) + ") holds " + directory_.path()),
            std::string::npos)
      << said;
  EXPECT_NE(said.find(" down --now"), std::string::npos) << said;
}

// One that was killed holds the lock for a moment more; it does not serve, whoever answers at its address.
TEST_F(UpTest, AHolderThatGoesIsReplaced) {
  Holder musterd(directory_);
  Stranger stranger([&] { musterd.end(); });  // so `up` has found the lock held
  ASSERT_TRUE(directory_.write_endpoint(stranger.url()));
  ASSERT_TRUE(directory_.write_region("us-east-1"));
  ASSERT_TRUE(directory_.write_root_key({"AK", "secret"}));
  const auto [code, said] = up_with(Millis{20'000});
  EXPECT_EQ(code, kFailed);
  EXPECT_NE(said.find("cannot start "), std::string::npos) << said;
}

// What it says finds no room in the data directory.
TEST_F(UpTest, AStartThatFailsOnAFullDiskSaysWhy) {
  ASSERT_EQ(::symlink("/dev/full", (directory_.path() + "/musterd.start").c_str()), 0);
  const auto [code, said] = up_with(Millis{20'000});
  EXPECT_EQ(code, kFailed);
  EXPECT_NE(said.find("cannot start "), std::string::npos) << said;
}

}  // namespace
}  // namespace muster::cli
