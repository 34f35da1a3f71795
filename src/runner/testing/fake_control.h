// A control plane for tests of the runner: speaks the runner protocol over real HTTP, keeps what runners
// send, and pushes ranks through a job as the real one does. Thread-safe. It can be stopped and started again
// on its port.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/http.h"
#include "telemetry/memory/log_store.h"
#include "wire/runner/messages.h"

namespace muster::runner::testing {

class FakeControl final : public net::Handler {
 public:
  explicit FakeControl(int world = 1);
  ~FakeControl() override;

  void start();  // on the same port as before
  void stop();
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // What a rank said and printed so far.
  std::vector<domain::RankReport> reports(int rank = 0);
  std::vector<wire::Line> lines(int rank = 0);
  std::string text(int rank = 0);  // lines joined by newlines
  // "ready running ...": without `preparing`, which only staging that takes a while reports.
  std::string phases(int rank = 0);
  domain::RankExit exit_of(int rank = 0);

  // Orders from now on, over what the state of the ranks calls for.
  void request_stop(domain::Cause cause, Millis grace);
  void make_stale();
  void hold_barrier(bool hold);
  void refuse_logs();
  void lose_logs();  // all that was acknowledged, as if damage had set the streams aside
  // Waits up to 20 s until `condition` (called under the lock) is true.
  bool wait(const std::function<bool()>& condition);
  // Until the runner has heard the word in force and asks for the next.
  bool wait_until_heard(int rank = 0);
  bool wait_for_phase(domain::RankPhase phase, int rank = 0);
  bool wait_for_line(const std::string& text, int rank = 0);
  bool wait_for_refusals(int count);  // of logs

  std::variant<net::Route, net::Response> route(const net::RequestHead& head) override;

  int credentials_served = 0;
  // CLOCK_BOOTTIME in ns of the answer "run" and of the acknowledgement of the first line that is not the
  // runner's.
  std::int64_t run_sent_ns = 0;
  std::int64_t first_line_ns = 0;

 private:
  struct Rank {
    std::vector<domain::RankReport> reports;
    Time last_line;
  };
  struct Poll {
    int rank = 0;
    std::uint64_t after = 0;
    net::Responder respond;
  };
  domain::Desired desired(int rank);  // under the lock
  void changed();                     // under the lock: answers polls
  net::Response take_report(int rank, const std::string& body);
  net::Response take_logs(int rank, const std::string& body);
  std::vector<wire::Line> lines_of(int rank);  // under the lock

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Rank> ranks_;
  std::unique_ptr<ports::LogStore> logs_ = telemetry::make_memory_log_store();
  std::vector<Poll> polls_;
  const int world_;
  bool stop_ = false;
  bool stale_ = false;
  bool hold_ = false;
  bool refuse_logs_ = false;
  int refusals_ = 0;
  domain::Cause stop_cause_ = domain::Cause::user;
  Millis grace_{0};
  std::uint16_t port_ = 0;
  std::unique_ptr<net::Server> server_;
};

}  // namespace muster::runner::testing
