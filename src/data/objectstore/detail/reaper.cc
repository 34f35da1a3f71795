#include "data/objectstore/detail/reaper.h"

#include <chrono>

namespace muster::objectstore {
namespace {

// Deaths are gathered for this long, so that they share a commit and do not stand in the way of writes.
constexpr std::chrono::milliseconds kGather{50};
// After a failure (disk trouble): later is soon enough.
constexpr std::chrono::seconds kRetry{5};
constexpr std::size_t kRoundMax = 512;

}  // namespace

Reaper::Reaper(const ContentFolder& folder, Catalog reader, Writer& writer)
    : folder_(folder), reader_(std::move(reader)), writer_(writer), thread_([this] { loop(); }) {}

Reaper::~Reaper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Reaper::notice() {
  {
    const std::lock_guard lock(mutex_);
    noticed_ = true;
  }
  wake_.notify_one();
}

void Reaper::pin(std::int64_t blob) {
  const std::lock_guard lock(mutex_);
  ++pins_[blob];
}

void Reaper::unpin(std::int64_t blob) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = pins_.find(blob);
    if (--at->second > 0) return;
    pins_.erase(at);
    noticed_ = true;
  }
  wake_.notify_one();
}

void Reaper::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return noticed_ || stopping_; });
    if (stopping_) return;
    wake_.wait_for(lock, kGather, [this] { return stopping_; });
    if (stopping_) return;
    noticed_ = false;
    lock.unlock();
    const auto more = round();
    lock.lock();
    if (!more) wake_.wait_for(lock, kRetry, [this] { return stopping_; });
    if (!more || *more) noticed_ = true;
  }
}

std::vector<DeadBlob> Reaper::claim(const std::vector<DeadBlob>& dead) {
  const std::lock_guard lock(mutex_);
  std::vector<DeadBlob> ours;
  for (const auto& blob : dead) {
    if (!pins_.contains(blob.id)) ours.push_back(blob);
  }
  return ours;
}

Result<bool> Reaper::round() {
  MUSTER_TRY(const auto dead, reader_.dead_blobs(kRoundMax));
  const auto ours = claim(dead);
  if (ours.empty()) return false;
  for (const auto& blob : ours) {
    if (!blob.composite) MUSTER_CHECK(folder_.remove(blob.id));
  }
  auto erased = writer_.run_freeing([&](Catalog& catalog) -> ports::ObjectResult<void> {
    for (const auto& blob : ours) {
      if (blob.composite) {
        MUSTER_TRY(const auto pieces, catalog.pieces(blob.id));
        for (const auto& piece : pieces) MUSTER_CHECK(catalog.remove_user(piece.blob));
      }
      MUSTER_CHECK(catalog.delete_blob(blob.id));
    }
    return {};
  });
  if (!erased) return tl::unexpected(std::move(erased).error().error);
  return true;
}

}  // namespace muster::objectstore
