#include "data/objectstore/detail/writer.h"

#include <algorithm>
#include <iterator>

namespace muster::objectstore {

using ports::ObjectFault;
using ports::ObjectResult;

Writer::Writer(Catalog catalog, Ballast ballast, std::function<Result<void>()> before_commit)
    : catalog_(std::move(catalog)), ballast_(std::move(ballast)), before_commit_(std::move(before_commit)) {
  ballast_.restore();
  thread_ = std::thread([this] { loop(); });
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

ObjectResult<void> Writer::run(const Work& work, bool* uncertain, bool frees) {
  Job job(&work, frees);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(&job);
  }
  wake_.notify_one();
  job.done.acquire();
  if (uncertain != nullptr) *uncertain = job.uncertain;
  return std::move(job.result);
}

void Writer::loop() {
  std::vector<Job*> batch;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto count = std::min(waiting_.size(), kBatchMax);
      batch.assign(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
    }
    commit(batch);
    for (auto* job : batch) job->done.release();
  }
}

namespace {

ports::ObjectError database_failure(const Error& cause) {
  auto error = cause.with_context("the object store cannot write its metadata");
  // SQLite's words for SQLITE_FULL; the code is that of every I/O error.
  if (cause.message.find("database or disk is full") == std::string::npos) return {std::move(error)};
  return {ObjectFault::storage_full, std::move(error)};
}

}  // namespace

void Writer::commit(const std::vector<Job*>& batch) {
  bool committing = false;
  auto done = attempt(batch, committing);
  if (done) {
    ballast_.restore();
    return;
  }
  const auto error = database_failure(done.error());
  for (auto* job : batch) {
    job->result = tl::unexpected(error);
    job->uncertain = committing;
  }
  if (error.fault != ObjectFault::storage_full) return;
  std::vector<Job*> freeing;
  std::copy_if(batch.begin(), batch.end(), std::back_inserter(freeing),
               [](const Job* job) { return job->frees; });
  if (freeing.empty()) return;
  ballast_.release();
  catalog_.shrink_log();
  if (auto again = attempt(freeing, committing); !again) {
    for (auto* job : freeing) job->result = tl::unexpected(database_failure(again.error()));
  }
}

Result<void> Writer::attempt(const std::vector<Job*>& batch, bool& committing) {
  MUSTER_TRY(auto transaction, catalog_.begin());
  for (auto* job : batch) {
    job->result = (*job->work)(catalog_);
    if (!job->result && job->result.error().fault == ObjectFault::other) {
      return tl::unexpected(job->result.error().error);
    }
  }
  MUSTER_CHECK(before_commit_());
  committing = true;
  return transaction.commit();
}

}  // namespace muster::objectstore
