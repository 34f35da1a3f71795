// The log of one launch on disk until the control plane has acknowledged it.
//
// Lines are numbered from 0 without gaps, their times never go back. They lie in segment files named by the
// number of their first line; a segment is deleted when all of it is acknowledged. What a runner that died
// left behind is read again by open(): a torn last record is dropped. When more than Options::bytes_max wait,
// new lines are counted and dropped until a quarter of the room is free again; then one line says how many.
// Memory is bounded by one write buffer and one batch. docs/formats/runner-protocol.md, "Spool".
//
// Threading: any thread appends; one thread calls wait(), next_batch() and acknowledge().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "wire/runner/messages.h"

namespace muster::runner {

struct SpoolOptions {
  std::uint64_t bytes_max = 1ULL << 30;
  std::uint64_t segment_bytes = 8ULL << 20;
  std::size_t batch_bytes = 1 << 20;  // of JSON, about
  std::size_t batch_lines = 10'000;
};

class LogSpool {
 public:
  // Makes `folder` or takes up what lies in it.
  static Result<std::unique_ptr<LogSpool>> open(std::string folder, SpoolOptions options = {});

  // A line becomes visible to the reader with flush(), or when the buffer is full. A disk that refuses a
  // write makes lines dropped ones.
  void append(Time now, std::string_view line);
  void flush();

  // Blocks until there is a batch to read, or close() was called and nothing is left (false), or stop.
  bool wait(std::stop_token stop);
  // The lines after those of the last next_batch(); first_sequence counts from 0 in this spool.
  Result<wire::LogBatch> next_batch();
  // Everything below `next` is in the log store.
  void acknowledge(std::uint64_t next);
  // No more lines come (later ones are ignored).
  void close();

  // Number, in the log stream, of the spool's line 0: other incarnations may have written before. Set once,
  // and then known even if the disk refuses the file: keep_base() tries that again, and is free when it is
  // there. Without the file a drain would send lines twice.
  std::optional<std::uint64_t> base() const { return base_; }
  void set_base(std::uint64_t base);
  Result<void> keep_base();

  std::uint64_t unread() const;  // lines that wait() would not block for
  bool closed() const;
  std::uint64_t end() const;  // lines appended so far, flushed or not
  std::uint64_t bytes_waiting() const;

 private:
  struct Segment {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;  // written
    std::string path;
    UniqueFd file;
  };
  LogSpool(std::string folder, SpoolOptions options) : folder_(std::move(folder)), options_(options) {}
  Result<void> recover();
  Result<void> add_segment();
  void append_locked(Time time, std::string_view line);
  void flush_locked();
  void notice_dropped_locked(Time time);
  std::uint64_t waiting_locked() const;

  const std::string folder_;
  const SpoolOptions options_;
  std::optional<std::uint64_t> base_;
  bool base_kept_ = false;

  mutable std::mutex mutex_;
  std::condition_variable_any readable_;
  std::deque<Segment> segments_;  // the last one is written
  std::string buffer_;            // records not yet written
  std::uint64_t buffered_ = 0;    // records in it
  std::uint64_t dropped_ = 0;     // > 0: dropping
  bool disk_refused_ = false;     // and tried again at retry_disk_
  Time retry_disk_;
  bool closed_ = false;
  Time last_time_;
  // The reader's place.
  std::uint64_t read_next_ = 0;    // line
  std::uint64_t read_offset_ = 0;  // in the segment that holds it
};

}  // namespace muster::runner
