// Takes a body in: one pass from the source over the digests into a content file, in buffers from a shared
// budget.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data/objectstore/detail/content.h"
#include "ports/object_store.h"

namespace muster::objectstore {

// Pooled buffers of one size. Thread-safe.
class BufferPool {
 public:
  static constexpr std::size_t kBufferBytes = 256 << 10;
  explicit BufferPool(std::uint64_t bytes_max);

  using Buffer = std::unique_ptr<char[]>;
  Buffer acquire();      // waits for one
  Buffer try_acquire();  // null when all are out
  void release(Buffer buffer);

 private:
  Buffer take();  // with the lock held

  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<Buffer> free_;
  std::size_t left_;  // buffers that may still be made
};

struct TakenIn {
  std::optional<ContentFolder::Incoming> content;  // nullopt: no bytes
  std::uint64_t size = 0;
  std::string md5;                      // raw
  std::optional<std::string> checksum;  // raw, of PutOptions::checksum
};

// Reads `source` to its end. The content is durable, its name not yet. bad_digest, incomplete_body,
// entity_too_large, source_failed, storage_full. `id` names the content file.
ports::ObjectResult<TakenIn> take_in(ports::ByteSource& source, const ports::PutOptions& options,
                                     const ContentFolder& folder, BufferPool& buffers, std::int64_t id);

}  // namespace muster::objectstore
