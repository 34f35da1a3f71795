#include "data/objectstore/detail/writer.h"

#include <algorithm>

namespace muster::objectstore {

using ports::ObjectFault;
using ports::ObjectResult;

Writer::Writer(Catalog catalog, std::function<Result<void>()> before_commit)
    : catalog_(std::move(catalog)), before_commit_(std::move(before_commit)), thread_([this] { loop(); }) {}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

ObjectResult<void> Writer::run(const Work& work, bool* uncertain) {
  Job job(&work);
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

void Writer::commit(const std::vector<Job*>& batch) {
  bool committing = false;
  auto done = attempt(batch, committing);
  if (done) return;
  const auto error = done.error().with_context("the object store cannot write its metadata");
  for (auto* job : batch) {
    job->result = tl::unexpected(ports::ObjectError(error));
    job->uncertain = committing;
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
