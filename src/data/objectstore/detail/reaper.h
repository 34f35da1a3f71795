// Removes content that no object uses any more, on a thread of its own, behind the commits that freed it.
// Blobs that a reader still goes through piece by piece are pinned and wait. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "data/objectstore/detail/catalog.h"
#include "data/objectstore/detail/content.h"
#include "data/objectstore/detail/writer.h"

namespace muster::objectstore {

class Reaper {
 public:
  Reaper(const ContentFolder& folder, Catalog reader, Writer& writer);
  ~Reaper();  // what is left goes at the next start

  void notice();  // something may have died

  void pin(std::int64_t blob);
  void unpin(std::int64_t blob);

 private:
  void loop();
  Result<bool> round();  // true: more may be dead
  std::vector<DeadBlob> claim(const std::vector<DeadBlob>& dead);

  const ContentFolder& folder_;
  Catalog reader_;
  Writer& writer_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<std::int64_t, int> pins_;
  bool noticed_ = true;  // left-overs of the last run
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster::objectstore
