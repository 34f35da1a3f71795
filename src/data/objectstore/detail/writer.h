// The one thread that writes the metadata database. Callers hand it work and wait; whatever waits when a
// commit ends goes into the next one together, so that many small writes share one fsync.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/ballast.h"
#include "data/objectstore/detail/catalog.h"
#include "ports/object_store.h"

namespace muster::objectstore {

class Writer {
 public:
  // Looks before it writes: when it answers a fault other than `other`, it has written nothing. An `other`
  // fault (the database failed) undoes the whole batch, and all of it is answered with that error.
  using Work = std::function<ports::ObjectResult<void>(Catalog&)>;

  // before_commit runs ahead of every commit: what rows name must be durable first.
  Writer(Catalog catalog, Ballast ballast, std::function<Result<void>()> before_commit);
  ~Writer();  // finishes what waits

  // Durable on success. `uncertain` (may be null) is set when the commit itself failed, so that a restart
  // might still find it.
  ports::ObjectResult<void> run(const Work& work, bool* uncertain = nullptr) {
    return run(work, uncertain, false);
  }
  // The same for work that makes room: on a full disk it gets the ballast.
  ports::ObjectResult<void> run_freeing(const Work& work) { return run(work, nullptr, true); }

 private:
  struct Job {
    const Work* work;
    const bool frees;
    ports::ObjectResult<void> result;
    bool uncertain = false;
    std::binary_semaphore done{0};
    Job(const Work* what, bool makes_room) : work(what), frees(makes_room) {}
  };

  ports::ObjectResult<void> run(const Work& work, bool* uncertain, bool frees);
  void loop();
  void commit(const std::vector<Job*>& batch);
  Result<void> attempt(const std::vector<Job*>& batch, bool& committing);

  static constexpr std::size_t kBatchMax = 256;

  Catalog catalog_;
  Ballast ballast_;
  std::function<Result<void>()> before_commit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Job*> waiting_;  // bounded by the number of calling threads
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster::objectstore
