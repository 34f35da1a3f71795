// One log stream on disk: its segment files, a sparse index over them, appending and reading.
//
// Only records whose fdatasync has returned are seen by readers. Times are kept from going back: a line that
// claims an earlier time than the one before gets that one's, so (time, sequence) is one order.
//
// Thread-safe. One appender at a time; a reader does not wait for an appender's disk, only for other readers
// of the stream.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "ports/log_store.h"
#include "telemetry/logs/record.h"

namespace muster::telemetry {

class StreamFile {
 public:
  // Writes the first segment, which becomes durable with the first append, be it an empty one. `prefix`: path
  // of the segments without `.SEQUENCE.log`.
  static Result<std::unique_ptr<StreamFile>> create(std::string prefix, std::string group, std::string stream,
                                                    Time now, std::uint64_t segment_bytes_max);
  // Takes over existing segments, in order. Reads only the first header; the rest at first use, when a torn
  // tail of the last segment is cut off. corrupt: a header is damaged.
  static Result<std::unique_ptr<StreamFile>> open(std::string prefix, std::vector<std::string> segments,
                                                  std::uint64_t segment_bytes_max);

  const std::string& group() const { return group_; }
  const std::string& name() const { return name_; }
  Time created() const { return created_; }

  Result<std::uint64_t> append(std::optional<std::uint64_t> first_sequence,
                               std::span<const ports::LogLine> lines, Time now);
  Result<ports::LogPage> read(const ports::LogQuery& query);
  Result<ports::LogStream> describe();
  std::uint64_t bytes_on_disk();
  Result<void> remove();

  static std::string segment_path(const std::string& prefix, std::uint64_t first_sequence);

 private:
  struct Mark {  // a record at about every 64 KiB
    std::uint64_t offset = 0;
    std::uint64_t sequence = 0;
    Time time;
  };
  struct Segment {
    std::string path;
    std::uint64_t first_sequence = 0;
    std::uint64_t header_bytes = 0;
    std::uint64_t end = 0;  // of the last synced record
    bool indexed = false;
    std::vector<Mark> marks;     // rising; the first is the first record; none when there is no record
    std::optional<Record> last;  // its text is not kept; set when indexed
  };
  // A block of records: from a mark to the next one or the segment's end.
  struct Block {
    std::size_t segment = 0;
    std::size_t mark = 0;
  };
  struct Batch {  // lines encoded for appending
    std::string bytes;
    std::vector<Record> records;         // texts are not kept
    std::vector<std::uint64_t> offsets;  // in bytes
  };

  StreamFile(std::string prefix, std::string group, std::string stream, Time created,
             std::uint64_t segment_bytes_max)
      : prefix_(std::move(prefix)),
        group_(std::move(group)),
        name_(std::move(stream)),
        created_(created),
        segment_bytes_max_(segment_bytes_max) {}

  // All with state_ held, but for encode and write.
  Result<void> load();
  Result<void> drop_empty_end();
  Result<void> index(Segment& segment, bool last);
  Result<std::optional<Time>> first_time(Segment& segment);
  Batch encode(std::uint64_t first, std::span<const ports::LogLine> lines, std::optional<Time> last_time,
               Time now) const;
  Result<void> write(const Segment& segment, const Batch& batch);
  Result<void> roll(std::uint64_t next);
  std::string header() const;
  void add_segment(std::string path, std::uint64_t header_bytes);
  void publish(const Batch& batch);
  static void add_to_index(Segment& segment, std::uint64_t offset, const Record& record);

  Result<std::size_t> first_segment(std::uint64_t sequence, std::optional<Time> start);
  Result<std::size_t> last_segment(std::uint64_t end_sequence, std::optional<Time> end);
  Result<std::string> read_block(const Segment& segment, std::size_t mark) const;
  template <typename Use>
  Result<void> for_records(const Segment& segment, std::size_t mark, Use use) const;
  Result<ports::LogPage> read_forward(const ports::LogQuery& query);
  Result<ports::LogPage> read_backward(const ports::LogQuery& query);

  const std::string prefix_;
  const std::string group_;
  const std::string name_;
  const Time created_;
  const std::uint64_t segment_bytes_max_;

  std::mutex append_;     // held over a whole append; taken before state_
  bool settled_ = false;  // the names of the segments are durable; guarded by append_
  std::mutex state_;      // guards what is below
  bool loaded_ = false;
  bool removed_ = false;
  std::vector<Segment> segments_;  // at least one
  std::uint64_t next_sequence_ = 0;
  std::optional<Record> last_;  // of the whole stream; its text is not kept
};

}  // namespace muster::telemetry
