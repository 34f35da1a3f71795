#include "net/detail/pool.h"

#include <system_error>

namespace muster::net::detail {

bool Pool::submit(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return false;
  add_locked(std::move(job));
  return true;
}

bool Pool::submit_if_free(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  const auto free_threads =
      static_cast<std::size_t>(idle_) + static_cast<std::size_t>(threads_max_) - threads_.size();
  if (stopped_ || jobs_.size() >= free_threads) return false;
  add_locked(std::move(job));
  return true;
}

void Pool::add_locked(std::function<void()> job) {
  jobs_.push_back(std::move(job));
  if (jobs_.size() > static_cast<std::size_t>(idle_) &&
      threads_.size() < static_cast<std::size_t>(threads_max_)) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // no more threads to be had: those that run take the job later
      if (threads_.empty()) throw;
    }
  } else {
    wake_.notify_one();
  }
}

void Pool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
    --idle_;
    if (stopped_) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds goes before the lock is taken
    lock.lock();
  }
}

void Pool::stop() {
  std::deque<std::function<void()>> dropped;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(jobs_);
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (auto& thread : threads) thread.join();
}

}  // namespace muster::net::detail
