#include "runner/report/spool.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/text.h"
#include "runner/supervise/lines.h"

namespace muster::runner {
namespace {

constexpr std::size_t kHeaderBytes = 12;  // u32 length, i64 time in ms; little endian
constexpr std::size_t kBufferBytes = 256 << 10;

void put_record(std::string& out, Time time, std::string_view line) {
  const auto length = static_cast<std::uint32_t>(line.size());
  char header[kHeaderBytes];
  std::memcpy(header, &length, 4);
  std::memcpy(header + 4, &time.unix_ms, 8);
  out.append(header, kHeaderBytes);
  out.append(line);
}

// A record at the front of `data`; nullopt when it is not complete or no record (a hole left by a crash).
struct Record {
  Time time;
  std::string_view line;
};
std::optional<Record> front_record(std::string_view data) {
  if (data.size() < kHeaderBytes) return std::nullopt;
  std::uint32_t length = 0;
  Record record;
  std::memcpy(&length, data.data(), 4);
  std::memcpy(&record.time.unix_ms, data.data() + 4, 8);
  if (length > kLineBytesMax || record.time.unix_ms == 0 || data.size() - kHeaderBytes < length)
    return std::nullopt;
  record.line = data.substr(kHeaderBytes, length);
  return record;
}

// About how long the line is in JSON.
std::size_t json_cost(std::string_view line) {
  const auto escaped = std::count_if(line.begin(), line.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == '"' || byte == '\\' || byte >= 0x80;
  });
  return line.size() + 5 * static_cast<std::size_t>(escaped) + 24;
}

std::string segment_name(std::uint64_t first) {
  auto digits = std::to_string(first);
  return "log-" + std::string(20 - digits.size(), '0') + digits;
}

// First lines of the segments in `folder`, in order.
Result<std::vector<std::uint64_t>> list_segments(const std::string& folder) {
  std::vector<std::uint64_t> out;
  DIR* directory = ::opendir(folder.c_str());
  if (directory == nullptr) return fail_errno("open " + folder);
  while (const auto* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name.substr(0, 4) != "log-") continue;
    const auto first = parse_int(name.substr(4));
    if (first && *first >= 0) out.push_back(static_cast<std::uint64_t>(*first));
  }
  ::closedir(directory);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

Result<std::unique_ptr<LogSpool>> LogSpool::open(std::string folder, SpoolOptions options) {
  MUSTER_CHECK(make_directories(folder, 0700));
  std::unique_ptr<LogSpool> spool(new LogSpool(std::move(folder), options));
  auto recovered = spool->recover();
  if (!recovered) return tl::unexpected(recovered.error().with_context("log spool"));
  return spool;
}

Result<void> LogSpool::recover() {
  if (const auto text = read_file(folder_ + "/base"); text && !text->empty()) {
    const auto number = parse_int(trim(*text));
    if (!number || *number < 0) return fail(ErrorCode::corrupt, folder_ + "/base is no number: " + *text);
    base_ = static_cast<std::uint64_t>(*number);
    base_kept_ = true;
  }
  MUSTER_TRY(const auto firsts, list_segments(folder_));
  for (const auto first : firsts) {
    if (!segments_.empty() && segments_.back().first + segments_.back().count != first) {
      return fail(ErrorCode::corrupt, folder_ + " misses lines before " + std::to_string(first));
    }
    Segment segment{first, 0, 0, folder_ + "/" + segment_name(first), {}};
    MUSTER_TRY(segment.file, open_file(segment.path, O_RDWR | O_APPEND));
    MUSTER_TRY(const auto data, read_file(segment.path, 1ULL << 30));
    auto rest = std::string_view(data);
    while (const auto record = front_record(rest)) {
      rest.remove_prefix(kHeaderBytes + record->line.size());
      last_time_ = std::max(last_time_, record->time);
      ++segment.count;
    }
    segment.bytes = data.size() - rest.size();
    if (::ftruncate(segment.file.get(), static_cast<off_t>(segment.bytes)) != 0) {
      return fail_errno("truncate " + segment.path);
    }
    segments_.push_back(std::move(segment));
  }
  if (segments_.empty()) return add_segment();
  read_next_ = segments_.front().first;
  return {};
}

Result<void> LogSpool::add_segment() {
  const auto first = segments_.empty() ? 0 : segments_.back().first + segments_.back().count;
  Segment segment{first, 0, 0, folder_ + "/" + segment_name(first), {}};
  MUSTER_TRY(segment.file, open_file(segment.path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600));
  segments_.push_back(std::move(segment));
  return {};
}

void LogSpool::set_base(std::uint64_t base) {
  MUSTER_ASSERT(!base_);
  base_ = base;
}

Result<void> LogSpool::keep_base() {
  if (base_kept_) return {};
  // Whole or absent after a crash of the runner. Nothing of the spool is made to outlive one of the machine.
  const auto path = folder_ + "/base";
  MUSTER_TRY(const auto file, open_file(path + ".new", O_WRONLY | O_CREAT | O_TRUNC, 0600));
  MUSTER_CHECK(write_all(file.get(), std::to_string(base_.value()) + "\n"));
  if (::rename((path + ".new").c_str(), path.c_str()) != 0) return fail_errno("rename to " + path);
  base_kept_ = true;
  return {};
}

std::uint64_t LogSpool::waiting_locked() const {
  std::uint64_t bytes = buffer_.size();
  for (const auto& segment : segments_) bytes += segment.bytes;
  return bytes;
}

std::uint64_t LogSpool::bytes_waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_locked();
}

std::uint64_t LogSpool::end() const {
  const std::lock_guard lock(mutex_);
  return segments_.back().first + segments_.back().count + buffered_;
}

std::uint64_t LogSpool::unread() const {
  const std::lock_guard lock(mutex_);
  return segments_.back().first + segments_.back().count - read_next_;
}

bool LogSpool::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void LogSpool::append(Time now, std::string_view line) {
  MUSTER_ASSERT(line.size() <= kLineBytesMax);
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  const auto bytes = kHeaderBytes + line.size();
  const auto waiting = waiting_locked();
  if (waiting + bytes > options_.bytes_max ||
      (dropped_ > 0 && (disk_refused_ ? now < retry_disk_ : waiting > options_.bytes_max / 4 * 3))) {
    ++dropped_;
    return;
  }
  notice_dropped_locked(now);
  append_locked(now, line);
}

void LogSpool::append_locked(Time time, std::string_view line) {
  last_time_ = std::max(last_time_, time);
  put_record(buffer_, last_time_, line);
  ++buffered_;
  if (buffer_.size() >= kBufferBytes) flush_locked();
}

void LogSpool::notice_dropped_locked(Time time) {
  if (dropped_ == 0) return;
  const auto why = disk_refused_ ? std::string("the disk of the node refused to keep them")
                                 : "the control plane was away and at most " +
                                       format_bytes(options_.bytes_max) + " are kept";
  append_locked(time, "muster: " + std::to_string(dropped_) + " lines dropped: " + why);
  dropped_ = 0;
  disk_refused_ = false;
}

void LogSpool::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

void LogSpool::flush_locked() {
  if (buffer_.empty()) return;
  auto* segment = &segments_.back();
  Result<void> written{};
  if (segment->bytes >= options_.segment_bytes) {
    written = add_segment();
    segment = &segments_.back();
  }
  if (written) written = write_all(segment->file.get(), buffer_);
  if (written) {
    segment->bytes += buffer_.size();
    segment->count += buffered_;
  } else {
    // Nothing half-written may stay in front of later records. Where even that is refused, the segment ends
    // here.
    dropped_ += buffered_;
    disk_refused_ = true;
    retry_disk_ = last_time_ + Millis{1'000};
    if (::ftruncate(segment->file.get(), static_cast<off_t>(segment->bytes)) != 0) closed_ = true;
  }
  buffer_.clear();
  buffered_ = 0;
  readable_.notify_all();
}

bool LogSpool::wait(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  const auto written = [&] { return segments_.back().first + segments_.back().count; };
  readable_.wait(lock, stop, [&] { return read_next_ < written() || closed_; });
  return read_next_ < written();
}

Result<wire::LogBatch> LogSpool::next_batch() {
  int file = -1;
  std::uint64_t available = 0;
  {
    const std::lock_guard lock(mutex_);
    // The segment that holds the line; an exhausted one gives way to the next.
    for (const auto& segment : segments_) {
      if (read_next_ >= segment.first + segment.count) continue;
      if (read_next_ == segment.first) read_offset_ = 0;
      file = segment.file.get();  // stays open: only this thread deletes segments
      available = segment.bytes;
      break;
    }
  }
  wire::LogBatch batch;
  batch.first_sequence = read_next_;
  if (file < 0) return batch;
  std::string data(
      std::min<std::uint64_t>(available - read_offset_, 2 * kLineBytesMax + options_.batch_bytes), '\0');
  const auto count = ::pread(file, data.data(), data.size(), static_cast<off_t>(read_offset_));
  if (count < 0) return fail_errno("read the log spool");
  data.resize(static_cast<std::size_t>(count));
  auto rest = std::string_view(data);
  std::size_t cost = 0;
  while (batch.lines.size() < options_.batch_lines) {
    const auto record = front_record(rest);
    if (!record) break;
    cost += json_cost(record->line);
    if (cost > options_.batch_bytes && !batch.lines.empty()) break;
    batch.lines.push_back({record->time, std::string(record->line)});
    rest.remove_prefix(kHeaderBytes + record->line.size());
  }
  if (batch.lines.empty()) return fail(ErrorCode::corrupt, "the log spool does not hold the line it should");
  read_offset_ += data.size() - rest.size();
  read_next_ += batch.lines.size();
  return batch;
}

void LogSpool::acknowledge(std::uint64_t next) {
  const std::lock_guard lock(mutex_);
  while (segments_.size() > 1 && segments_.front().first + segments_.front().count <= next) {
    ::unlink(segments_.front().path.c_str());
    segments_.pop_front();
  }
}

void LogSpool::close() {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  notice_dropped_locked(last_time_);
  flush_locked();
  closed_ = true;
  readable_.notify_all();
}

}  // namespace muster::runner
