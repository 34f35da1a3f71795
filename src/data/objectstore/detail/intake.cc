#include "data/objectstore/detail/intake.h"

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "base/text.h"
#include "data/objectstore/detail/refuse.h"

namespace muster::objectstore {
namespace {

using crypto::Digest;
using ports::ObjectError;
using ports::ObjectFault;
using ports::ObjectLimits;
using ports::ObjectResult;

// Bodies below are hashed on the thread that reads them: a second thread costs more than it saves.
constexpr std::uint64_t kParallelBytes = 1 << 20;

// Every digest that somebody asked for, each computed once.
class Digests {
 public:
  explicit Digests(const ports::PutOptions& options) {
    want(Digest::md5);
    if (options.checksum) want(*options.checksum);
    for (const auto& expected : options.expected) want(expected.kind);
  }

  void update(std::string_view data) {
    for (auto& one : all_) one.hasher.update(data);
  }

  void finish() {
    for (auto& one : all_) one.raw = one.hasher.finish();
  }

  // After finish(); nullptr for a kind that was not wanted.
  const std::string* raw(Digest kind) const {
    for (const auto& one : all_) {
      if (one.kind == kind) return &one.raw;
    }
    return nullptr;
  }

 private:
  struct One {
    Digest kind;
    crypto::Hasher hasher;
    std::string raw;
  };

  void want(Digest kind) {
    for (const auto& one : all_) {
      if (one.kind == kind) return;
    }
    all_.push_back({kind, crypto::Hasher(kind), {}});
  }

  std::vector<One> all_;
};

// Runs the digests behind the reader on a thread of its own. put() hands over a full buffer and answers an
// empty one; one buffer is being filled, one hashed, one waits.
class HashLane {
 public:
  HashLane(Digests& digests, BufferPool::Buffer first, BufferPool::Buffer second) : digests_(digests) {
    free_.push_back(std::move(first));
    free_.push_back(std::move(second));
    thread_ = std::thread([this] { loop(); });
  }

  ~HashLane() { end(); }

  BufferPool::Buffer put(BufferPool::Buffer full, std::size_t size) {
    std::unique_lock lock(mutex_);
    waiting_.push_back({std::move(full), size});
    changed_.notify_all();
    changed_.wait(lock, [this] { return !free_.empty(); });
    auto buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  // All handed over is hashed; answers the buffers.
  std::vector<BufferPool::Buffer> end() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    return std::move(free_);
  }

 private:
  struct Piece {
    BufferPool::Buffer buffer;
    std::size_t size;
  };

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      auto piece = std::move(waiting_.front());
      waiting_.erase(waiting_.begin());
      lock.unlock();
      digests_.update({piece.buffer.get(), piece.size});
      lock.lock();
      free_.push_back(std::move(piece.buffer));
      changed_.notify_all();
    }
  }

  Digests& digests_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> waiting_;
  std::vector<BufferPool::Buffer> free_;
  bool ending_ = false;
  std::thread thread_;
};

// Buffers of one body, given back at the end.
class Lease {
 public:
  explicit Lease(BufferPool& pool) : pool_(pool), current(pool.acquire()) {}
  ~Lease() {
    if (lane_) {
      for (auto& buffer : lane_->end()) pool_.release(std::move(buffer));
    }
    pool_.release(std::move(current));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  void hash_on_a_thread(Digests& digests) {
    auto first = pool_.try_acquire();
    auto second = first ? pool_.try_acquire() : nullptr;
    if (second) {
      lane_ = std::make_unique<HashLane>(digests, std::move(first), std::move(second));
    } else if (first) {
      pool_.release(std::move(first));
    }
  }

  void hash(Digests& digests, std::size_t size) {
    if (lane_) {
      current = lane_->put(std::move(current), size);
    } else {
      digests.update({current.get(), size});
    }
  }

  void end_hashing() {
    if (!lane_) return;
    for (auto& buffer : lane_->end()) pool_.release(std::move(buffer));
    lane_.reset();
  }

 private:
  BufferPool& pool_;
  std::unique_ptr<HashLane> lane_;

 public:
  BufferPool::Buffer current;
};

ObjectResult<void> check_digests(const Digests& digests, const std::vector<ports::ExpectedDigest>& expected) {
  for (const auto& one : expected) {
    const auto* raw = digests.raw(one.kind);
    const auto name = std::string(crypto::to_string(one.kind));
    if (raw == nullptr) return refuse(ObjectFault::bad_digest, "a " + name + " came that was not announced");
    if (*raw != one.raw) {
      return refuse(
          ObjectFault::bad_digest,
          "the " + name + " you specified did not match what we received (" + crypto::base64(*raw) + ")");
    }
  }
  return {};
}

// Fills the buffer as far as the source gives; 0 at the end.
ObjectResult<std::size_t> fill(ports::ByteSource& source, std::span<char> buffer) {
  std::size_t have = 0;
  while (have < buffer.size()) {
    auto count = source.read(buffer.subspan(have));
    if (!count) return tl::unexpected(ObjectError(ObjectFault::source_failed, std::move(count).error()));
    if (*count == 0) break;
    have += *count;
  }
  return have;
}

}  // namespace

BufferPool::BufferPool(std::uint64_t bytes_max)
    : left_(std::max<std::size_t>(1, static_cast<std::size_t>(bytes_max / kBufferBytes))) {}

BufferPool::Buffer BufferPool::take() {
  if (!free_.empty()) {
    auto buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  if (left_ == 0) return nullptr;
  --left_;
  return std::make_unique_for_overwrite<char[]>(kBufferBytes);
}

BufferPool::Buffer BufferPool::acquire() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (auto buffer = take()) return buffer;
    returned_.wait(lock);
  }
}

BufferPool::Buffer BufferPool::try_acquire() {
  const std::lock_guard lock(mutex_);
  return take();
}

void BufferPool::release(Buffer buffer) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }
  returned_.notify_one();
}

ObjectResult<TakenIn> take_in(ports::ByteSource& source, const ports::PutOptions& options,
                              const ContentFolder& folder, BufferPool& buffers, std::int64_t id) {
  if (options.size.value_or(0) > ObjectLimits::put_bytes_max) {
    return refuse(ObjectFault::entity_too_large, "the body has " + std::to_string(*options.size) +
                                                     " bytes, at most " +
                                                     std::to_string(ObjectLimits::put_bytes_max) +
                                                     " are allowed in one request: upload it in parts");
  }
  TakenIn taken;
  Digests digests(options);
  Lease lease(buffers);
  for (;;) {
    MUSTER_TRY(const auto count, fill(source, {lease.current.get(), BufferPool::kBufferBytes}));
    if (count == 0) break;
    if (!taken.content) {
      MUSTER_TRY(auto content, folder.create(id, options.size));
      taken.content.emplace(std::move(content));
      if (options.size.value_or(0) >= kParallelBytes) lease.hash_on_a_thread(digests);
    }
    taken.size += count;
    if (taken.size > options.size.value_or(ObjectLimits::put_bytes_max)) {
      return options.size
                 ? refuse(ObjectFault::incomplete_body,
                          "the body is longer than the " + std::to_string(*options.size) + " bytes announced")
                 : refuse(ObjectFault::entity_too_large, "the body is longer than 5 GiB");
    }
    MUSTER_CHECK(taken.content->write({lease.current.get(), count}));
    lease.hash(digests, count);
  }
  lease.end_hashing();
  if (options.size && taken.size != *options.size) {
    return refuse(ObjectFault::incomplete_body, "the body ended after " + std::to_string(taken.size) +
                                                    " of " + std::to_string(*options.size) + " bytes");
  }
  digests.finish();
  MUSTER_CHECK(check_digests(digests, options.expected));
  auto trailing = source.trailing_digests();
  if (!trailing) return tl::unexpected(ObjectError(ObjectFault::source_failed, std::move(trailing).error()));
  MUSTER_CHECK(check_digests(digests, *trailing));
  taken.md5 = *digests.raw(Digest::md5);
  if (options.checksum) taken.checksum = *digests.raw(*options.checksum);
  if (taken.content) MUSTER_CHECK(taken.content->finish());
  return taken;
}

}  // namespace muster::objectstore
