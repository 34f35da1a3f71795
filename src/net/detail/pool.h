// Threads that run blocking jobs: made when first needed, at most `threads_max`, waiting jobs in order.
//
// The queue has no bound of its own: a connection submits one job at a time, and connections are bounded.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace muster::net::detail {

class Pool {
 public:
  explicit Pool(int threads_max) : threads_max_(threads_max) {}
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // False after stop().
  bool submit(std::function<void()> job);
  // False also when the job would have to wait for a thread.
  bool submit_if_free(std::function<void()> job);
  // Drops waiting jobs and waits for the running ones.
  void stop();

 private:
  void work();
  void add_locked(std::function<void()> job);

  const int threads_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  int idle_ = 0;
  bool stopped_ = false;
};

}  // namespace muster::net::detail
