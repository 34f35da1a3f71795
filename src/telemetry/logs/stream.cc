#include "telemetry/logs/stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/assert.h"

namespace muster::telemetry {
namespace {

constexpr std::uint64_t kMarkBytes = 64 << 10;
constexpr std::size_t kScanBytes = 1 << 20;
constexpr std::size_t kEventOverhead = 26;  // bytes CloudWatch counts an event beside its text

Result<std::size_t> read_at(int fd, std::uint64_t offset, char* to, std::size_t count,
                            const std::string& path) {
  std::size_t done = 0;
  while (done < count) {
    const auto got = ::pread(fd, to + done, count - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("read " + path);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

tl::unexpected<Error> corrupt(const std::string& path, std::uint64_t offset) {
  return fail(ErrorCode::corrupt,
              path + ": the record at byte " + std::to_string(offset) + " does not match its checksum");
}

// Cuts what lies behind the last whole record, the never acknowledged tail of a crash. If a whole record
// follows later, it is no torn tail but damage: then the bytes are kept in a file beside the segment. Syncs
// in any case: records found here may be waiting in the page cache, and are acknowledged when sent again.
Result<void> cut_tail(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size) {
  if (offset < size) {
    std::string tail(std::min<std::uint64_t>(size - offset, 2 * kScanBytes), '\0');
    MUSTER_CHECK(read_at(fd, offset, tail.data(), tail.size(), path));
    for (std::size_t at = 1; at + kRecordHeaderBytes <= tail.size(); ++at) {
      if (!parse_record(std::string_view(tail).substr(at))) continue;
      MUSTER_CHECK(write_file_atomic(path + ".cut-" + std::to_string(offset), tail));
      break;
    }
    if (::ftruncate(fd, static_cast<off_t>(offset)) != 0) return fail_errno("truncate " + path);
  }
  if (::fdatasync(fd) != 0) return fail_errno("fdatasync " + path);
  return {};
}

Record without_text(Record record) {
  record.text = {};
  return record;
}

std::string directory_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

ports::LogEvent event_of(const Record& record) {
  return {.sequence = record.sequence,
          .time = record.time,
          .ingested = record.ingested,
          .text = std::string(record.text)};
}

}  // namespace

std::string StreamFile::segment_path(const std::string& prefix, std::uint64_t first_sequence) {
  char number[32];
  std::snprintf(number, sizeof number, ".%020llu.log", static_cast<unsigned long long>(first_sequence));
  return prefix + number;
}

Result<std::unique_ptr<StreamFile>> StreamFile::create(std::string prefix, std::string group,
                                                       std::string stream, Time now,
                                                       std::uint64_t segment_bytes_max) {
  std::unique_ptr<StreamFile> out(
      new StreamFile(std::move(prefix), std::move(group), std::move(stream), now, segment_bytes_max));
  const auto header = out->header();
  auto path = segment_path(out->prefix_, 0);
  MUSTER_TRY(const auto file, open_file(path, O_WRONLY | O_CREAT | O_EXCL));
  if (auto written = write_all(file.get(), header); !written) {
    ::unlink(path.c_str());
    return tl::unexpected(written.error().with_context("cannot write " + path));
  }
  out->add_segment(std::move(path), header.size());
  out->loaded_ = true;
  return out;
}

Result<std::unique_ptr<StreamFile>> StreamFile::open(std::string prefix, std::vector<std::string> segments,
                                                     std::uint64_t segment_bytes_max) {
  MUSTER_ASSERT(!segments.empty());
  std::unique_ptr<StreamFile> out;
  for (auto& path : segments) {
    MUSTER_TRY(const auto file, open_file(path, O_RDONLY));
    std::string head(kHeaderBytesMax, '\0');
    MUSTER_TRY(const auto count, read_at(file.get(), 0, head.data(), head.size(), path));
    const auto parsed = parse_header(std::string_view(head).substr(0, count));
    if (!parsed) return fail(ErrorCode::corrupt, path + ": the header of a log segment is expected");
    if (!out) {
      out.reset(new StreamFile(std::move(prefix), parsed->header.group, parsed->header.stream,
                               parsed->header.created, segment_bytes_max));
    }
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) return fail_errno("stat " + path);
    out->segments_.push_back({.path = std::move(path),
                              .first_sequence = parsed->header.first_sequence,
                              .header_bytes = parsed->size,
                              .end = static_cast<std::uint64_t>(info.st_size),
                              .indexed = false,
                              .marks = {},
                              .last = {}});
  }
  return out;
}

// ---- loading

Result<void> StreamFile::load() {
  if (removed_) return fail(ErrorCode::not_found, "log stream " + name_ + " was removed");
  if (loaded_) return {};
  auto& last = segments_.back();
  last.indexed = false;
  MUSTER_CHECK(index(last, true));
  if (!last.last && segments_.size() > 1) MUSTER_CHECK(drop_empty_end());
  const auto& end = segments_.back();
  last_ = end.last;
  next_sequence_ = last_ ? last_->sequence + 1 : end.first_sequence;
  loaded_ = true;
  return {};
}

// A roll without its first record, left by a crash or a failed append. The next append rolls again if it
// must.
Result<void> StreamFile::drop_empty_end() {
  MUSTER_CHECK(index(segments_[segments_.size() - 2], false));
  if (::unlink(segments_.back().path.c_str()) != 0) return fail_errno("remove " + segments_.back().path);
  segments_.pop_back();
  return {};
}

// Scans the segment; last: and cuts its torn tail.
Result<void> StreamFile::index(Segment& segment, bool last) {
  if (segment.indexed) return {};
  segment.marks.clear();
  segment.last.reset();
  MUSTER_TRY(const auto file, open_file(segment.path, last ? O_RDWR : O_RDONLY));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return fail_errno("stat " + segment.path);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  std::string buffer;
  std::uint64_t offset = segment.header_bytes;  // of buffer's first byte
  std::size_t at = 0;
  std::uint64_t expected = segment.first_sequence;
  for (;;) {
    const auto record = parse_record(std::string_view(buffer).substr(at));
    if (record && record->sequence == expected) {
      add_to_index(segment, offset + at, *record);
      at += record->size();
      ++expected;
      continue;
    }
    const bool broken =
        record || buffer.size() - at >= kRecordHeaderBytes + kLineBytesMax;  // more bytes cannot help
    offset += at;
    buffer.erase(0, at);
    at = 0;
    const auto rest = size - offset - buffer.size();
    if (broken || rest == 0) break;
    const auto old = buffer.size();
    buffer.resize(old + std::min<std::uint64_t>(rest, kScanBytes));
    MUSTER_TRY(const auto count,
               read_at(file.get(), offset + old, buffer.data() + old, buffer.size() - old, segment.path));
    if (count != buffer.size() - old)
      return fail(ErrorCode::io, segment.path + " became shorter while it was read");
  }
  if (offset < size && !last) return corrupt(segment.path, offset);
  if (last) MUSTER_CHECK(cut_tail(file.get(), segment.path, offset, size));
  segment.end = offset;
  segment.indexed = true;
  return {};
}

void StreamFile::add_to_index(Segment& segment, std::uint64_t offset, const Record& record) {
  if (segment.marks.empty() || offset - segment.marks.back().offset >= kMarkBytes) {
    segment.marks.push_back({offset, record.sequence, record.time});
  }
  segment.last = without_text(record);
}

// nullopt: the segment has no record. Reads that record only, unless the segment is indexed.
Result<std::optional<Time>> StreamFile::first_time(Segment& segment) {
  const bool empty = segment.end == segment.header_bytes;
  if (segment.marks.empty() && !segment.indexed && !empty) {
    MUSTER_TRY(const auto file, open_file(segment.path, O_RDONLY));
    std::string bytes(kRecordHeaderBytes + kLineBytesMax, '\0');
    MUSTER_TRY(const auto count,
               read_at(file.get(), segment.header_bytes, bytes.data(), bytes.size(), segment.path));
    const auto record = parse_record(std::string_view(bytes).substr(0, count));
    if (!record) return corrupt(segment.path, segment.header_bytes);
    segment.marks.push_back({segment.header_bytes, record->sequence, record->time});
  }
  return segment.marks.empty() ? std::optional<Time>() : segment.marks[0].time;
}

// ---- appending

Result<std::uint64_t> StreamFile::append(std::optional<std::uint64_t> first_sequence,
                                         std::span<const ports::LogLine> lines, Time now) {
  const std::lock_guard appending(append_);
  Batch batch;
  Segment target;
  std::vector<ports::LogLine> after_gap;
  {
    const std::lock_guard lock(state_);
    MUSTER_CHECK(load());
    const auto first = first_sequence.value_or(next_sequence_);
    if (first < next_sequence_)
      lines = lines.subspan(std::min<std::uint64_t>(next_sequence_ - first, lines.size()));
    if (lines.empty() && settled_) return next_sequence_;
    for (const auto& line : lines) {
      if (line.text.size() > kLineBytesMax) {
        return fail(ErrorCode::invalid_argument, "log stream " + name_ + ": a line of " +
                                                     std::to_string(line.text.size()) + " bytes; at most " +
                                                     std::to_string(kLineBytesMax) +
                                                     " are stored, the writer splits longer ones");
      }
    }
    if (first > next_sequence_ && !lines.empty()) {  // within a segment there are no gaps
      after_gap.push_back({lines.front().time, ports::lines_missing(first - next_sequence_)});
      after_gap.insert(after_gap.end(), lines.begin(), lines.end());
      lines = after_gap;
      MUSTER_CHECK(roll(first - 1));
    } else if (segments_.back().end >= segment_bytes_max_) {
      MUSTER_CHECK(roll(next_sequence_));
    }
    batch = encode(next_sequence_, lines, last_ ? std::optional(last_->time) : std::nullopt, now);
    target = {.path = segments_.back().path,
              .first_sequence = 0,
              .header_bytes = 0,
              .end = segments_.back().end,
              .indexed = true,
              .marks = {},
              .last = {}};
  }
  const auto written = write(target, batch);  // readers go on meanwhile
  const std::lock_guard lock(state_);
  if (!written) {
    loaded_ = false;  // what the file holds now is not known: scan it again
    return tl::unexpected(written.error());
  }
  publish(batch);
  return next_sequence_;
}

StreamFile::Batch StreamFile::encode(std::uint64_t first, std::span<const ports::LogLine> lines,
                                     std::optional<Time> last_time, Time now) const {
  Batch batch;
  Time time = last_time.value_or(Time{0});
  for (const auto& line : lines) {
    time = std::max(time, line.time);
    const Record record{.sequence = first++, .time = time, .ingested = now, .text = line.text};
    batch.offsets.push_back(batch.bytes.size());
    append_record(batch.bytes, record);
    batch.records.push_back(without_text(record));
  }
  return batch;
}

// Writes behind the last synced record and syncs. After an error nothing of the batch is left if that can be
// had.
Result<void> StreamFile::write(const Segment& segment, const Batch& batch) {
  MUSTER_TRY(const auto file, open_file(segment.path, O_WRONLY));
  const auto all = [&]() -> Result<void> {
    if (::lseek(file.get(), static_cast<off_t>(segment.end), SEEK_SET) < 0) return fail_errno("seek");
    MUSTER_CHECK(write_all(file.get(), batch.bytes));
    if (::fdatasync(file.get()) != 0) return fail_errno("fdatasync");
    if (!settled_) MUSTER_CHECK(sync_directory(directory_of(prefix_)));
    settled_ = true;
    return {};
  };
  auto written = all();
  if (written) return {};
  if (::ftruncate(file.get(), static_cast<off_t>(segment.end)) != 0) {
    return tl::unexpected(
        written.error().with_context("cannot append to " + segment.path + " nor cut it again"));
  }
  return tl::unexpected(written.error().with_context("cannot append to " + segment.path));
}

// Begins a new segment with the line `next`, durably: a crash leaves it whole or absent.
Result<void> StreamFile::roll(std::uint64_t next) {
  loaded_ = false;  // until it is there
  next_sequence_ = next;
  auto path = segment_path(prefix_, next);
  const auto first = header();
  if (auto written = write_file_atomic(path, first); !written) {
    ::unlink(path.c_str());
    return written;
  }
  loaded_ = true;
  add_segment(std::move(path), first.size());
  return {};
}

// Of a segment that begins with the next line.
std::string StreamFile::header() const {
  return encode_header(
      {.group = group_, .stream = name_, .created = created_, .first_sequence = next_sequence_});
}

void StreamFile::add_segment(std::string path, std::uint64_t header_bytes) {
  segments_.push_back({.path = std::move(path),
                       .first_sequence = next_sequence_,
                       .header_bytes = header_bytes,
                       .end = header_bytes,
                       .indexed = true,
                       .marks = {},
                       .last = {}});
}

void StreamFile::publish(const Batch& batch) {
  if (batch.records.empty()) return;
  auto& segment = segments_.back();
  for (std::size_t i = 0; i < batch.records.size(); ++i) {
    add_to_index(segment, segment.end + batch.offsets[i], batch.records[i]);
  }
  segment.end += batch.bytes.size();
  last_ = batch.records.back();
  next_sequence_ = last_->sequence + 1;
}

// ---- reading

// The first segment that can hold a record from `sequence` on with a time from `start` on.
Result<std::size_t> StreamFile::first_segment(std::uint64_t sequence, std::optional<Time> start) {
  std::size_t at = segments_.size() - 1;
  while (at > 0 && segments_[at].first_sequence > sequence) --at;
  while (start && at + 1 < segments_.size()) {
    MUSTER_TRY(const auto next, first_time(segments_[at + 1]));
    if (!next || *next >= *start) break;
    ++at;
  }
  return at;
}

// The last segment that can hold a record below `end_sequence` with a time before `end`.
Result<std::size_t> StreamFile::last_segment(std::uint64_t end_sequence, std::optional<Time> end) {
  std::size_t at = segments_.size() - 1;
  while (at > 0 && segments_[at].first_sequence >= end_sequence) --at;
  while (end && at > 0) {
    MUSTER_TRY(const auto first, first_time(segments_[at]));
    if (first && *first < *end) break;
    --at;
  }
  return at;
}

Result<std::string> StreamFile::read_block(const Segment& segment, std::size_t mark) const {
  const auto begin = segment.marks[mark].offset;
  const auto end = mark + 1 < segment.marks.size() ? segment.marks[mark + 1].offset : segment.end;
  MUSTER_TRY(const auto file, open_file(segment.path, O_RDONLY));
  std::string bytes(end - begin, '\0');
  MUSTER_TRY(const auto count, read_at(file.get(), begin, bytes.data(), bytes.size(), segment.path));
  if (count != bytes.size()) return corrupt(segment.path, begin + count);
  return bytes;
}

// Calls use(record) for each record of a block until it answers false.
template <typename Use>
Result<void> StreamFile::for_records(const Segment& segment, std::size_t mark, Use use) const {
  MUSTER_TRY(const auto bytes, read_block(segment, mark));
  for (std::size_t at = 0; at < bytes.size();) {
    const auto record = parse_record(std::string_view(bytes).substr(at));
    if (!record) return corrupt(segment.path, segment.marks[mark].offset + at);
    if (!use(*record)) return {};
    at += record->size();
  }
  return {};
}

Result<ports::LogPage> StreamFile::read(const ports::LogQuery& query) {
  const std::lock_guard lock(state_);
  MUSTER_CHECK(load());
  return query.forward ? read_forward(query) : read_backward(query);
}

Result<ports::LogPage> StreamFile::read_forward(const ports::LogQuery& query) {
  ports::LogPage page;
  const auto from = query.sequence.value_or(0);
  page.forward_sequence = std::max(from, next_sequence_);  // unless the page ends earlier
  std::size_t bytes = 0;
  bool done = false;
  const auto take = [&](const Record& record) {
    if (record.sequence < from || (query.start && record.time < *query.start)) return true;
    const auto cost = record.text.size() + kEventOverhead;
    const bool full =
        page.events.size() >= query.events_max || (!page.events.empty() && bytes + cost > query.bytes_max);
    if (full || (query.end && record.time >= *query.end)) {
      page.forward_sequence = record.sequence;
      done = true;
      return false;
    }
    bytes += cost;
    page.events.push_back(event_of(record));
    return true;
  };
  MUSTER_TRY(auto at, first_segment(from, query.start));
  for (; at < segments_.size() && !done; ++at) {
    auto& segment = segments_[at];
    MUSTER_CHECK(index(segment, at + 1 == segments_.size()));
    const auto& marks = segment.marks;
    for (std::size_t mark = 0; mark < marks.size() && !done; ++mark) {
      const bool next_is_early =
          mark + 1 < marks.size() &&
          (marks[mark + 1].sequence <= from || (query.start && marks[mark + 1].time < *query.start));
      if (!next_is_early) MUSTER_CHECK(for_records(segment, mark, take));
    }
  }
  page.backward_sequence = page.events.empty() ? page.forward_sequence : page.events.front().sequence;
  return page;
}

Result<ports::LogPage> StreamFile::read_backward(const ports::LogQuery& query) {
  ports::LogPage page;
  const auto end = std::min(query.sequence.value_or(next_sequence_), next_sequence_);
  page.forward_sequence = page.backward_sequence = end;  // when the page is empty
  std::size_t bytes = 0;
  bool done = false;
  std::vector<ports::LogEvent> newest_first;
  MUSTER_TRY(auto at, last_segment(end, query.end));
  for (++at; at > 0 && !done; --at) {
    auto& segment = segments_[at - 1];
    MUSTER_CHECK(index(segment, at == segments_.size()));
    for (auto mark = segment.marks.size(); mark > 0 && !done; --mark) {
      const auto& begin = segment.marks[mark - 1];
      if (begin.sequence >= end || (query.end && begin.time >= *query.end)) continue;
      std::vector<ports::LogEvent> block;
      MUSTER_CHECK(for_records(segment, mark - 1, [&](const Record& record) {
        if (record.sequence >= end || (query.end && record.time >= *query.end)) return false;
        if (!query.start || record.time >= *query.start) block.push_back(event_of(record));
        return true;
      }));
      done = query.start && begin.time < *query.start;  // everything older is too old
      while (!block.empty()) {
        const auto cost = block.back().text.size() + kEventOverhead;
        if (newest_first.size() >= query.events_max ||
            (!newest_first.empty() && bytes + cost > query.bytes_max)) {
          done = true;
          break;
        }
        bytes += cost;
        newest_first.push_back(std::move(block.back()));
        block.pop_back();
      }
    }
  }
  page.events.assign(std::make_move_iterator(newest_first.rbegin()),
                     std::make_move_iterator(newest_first.rend()));
  if (!page.events.empty()) {
    page.forward_sequence = page.events.back().sequence + 1;
    page.backward_sequence = page.events.front().sequence;
  }
  return page;
}

Result<ports::LogStream> StreamFile::describe() {
  const std::lock_guard lock(state_);
  MUSTER_CHECK(load());
  ports::LogStream out{.name = name_,
                       .created = created_,
                       .first_event = {},
                       .last_event = {},
                       .last_ingested = {},
                       .next_sequence = next_sequence_,
                       .bytes = 0};
  for (std::size_t at = 0; at < segments_.size(); ++at) {
    auto& segment = segments_[at];
    const auto next = at + 1 < segments_.size() ? segments_[at + 1].first_sequence : next_sequence_;
    const auto records = segment.last ? segment.last->sequence + 1 : next;  // too many before a gap
    const auto bytes = segment.end - segment.header_bytes;
    out.bytes += bytes - std::min(bytes, (records - segment.first_sequence) * kRecordHeaderBytes);
    if (out.first_event) continue;
    MUSTER_TRY(out.first_event, first_time(segment));
  }
  if (last_) {
    out.last_event = last_->time;
    out.last_ingested = last_->ingested;
  }
  return out;
}

std::uint64_t StreamFile::bytes_on_disk() {
  const std::lock_guard lock(state_);
  std::uint64_t sum = 0;
  for (const auto& segment : segments_) sum += segment.end;
  return sum;
}

Result<void> StreamFile::remove() {
  const std::lock_guard appending(append_);
  const std::lock_guard lock(state_);
  removed_ = true;
  // Newest first: what a crash leaves over is a shorter stream, not one with a hole.
  for (auto it = segments_.rbegin(); it != segments_.rend(); ++it) {
    if (::unlink(it->path.c_str()) != 0 && errno != ENOENT) return fail_errno("remove " + it->path);
  }
  return sync_directory(directory_of(prefix_));
}

}  // namespace muster::telemetry
