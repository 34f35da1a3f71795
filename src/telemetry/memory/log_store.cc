#include "telemetry/memory/log_store.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace muster::telemetry {
namespace {

constexpr std::size_t kNameMax = 512;
constexpr std::size_t kLineMax = 256 << 10;
constexpr std::size_t kEventOverhead = 26;

struct Stream {
  Time created;
  std::vector<ports::LogEvent> events;  // rising sequences

  std::uint64_t next() const { return events.empty() ? 0 : events.back().sequence + 1; }
  // Index of the first event from `sequence` on.
  std::size_t find(std::uint64_t sequence) const {
    const auto found = std::ranges::lower_bound(events, sequence, {}, &ports::LogEvent::sequence);
    return static_cast<std::size_t>(found - events.begin());
  }
};

struct Group {
  Time created;
  std::map<std::string, Stream, std::less<>> streams;
};

class MemoryLogStore final : public ports::LogStore {
 public:
  Result<void> create(std::string_view group, std::string_view stream, Time now) override {
    if (group.empty() || group.size() > kNameMax || stream.empty() || stream.size() > kNameMax) {
      return fail(ErrorCode::invalid_argument, "log group and stream names have 1 to 512 bytes");
    }
    const std::lock_guard lock(mutex_);
    auto& g = groups_.try_emplace(std::string(group), Group{.created = now, .streams = {}}).first->second;
    g.streams.try_emplace(std::string(stream), Stream{.created = now, .events = {}});
    return {};
  }

  Result<std::uint64_t> append(std::string_view group, std::string_view stream,
                               std::optional<std::uint64_t> first_sequence,
                               std::span<const ports::LogLine> lines, Time now) override {
    const std::lock_guard lock(mutex_);
    MUSTER_TRY(Stream * s, find(group, stream));
    const auto next = s->next();
    const auto first = first_sequence.value_or(next);
    if (first < next) lines = lines.subspan(std::min<std::uint64_t>(next - first, lines.size()));
    if (std::any_of(lines.begin(), lines.end(),
                    [](const auto& line) { return line.text.size() > kLineMax; })) {
      return fail(ErrorCode::invalid_argument, "a line above 262144 bytes; the writer splits longer ones");
    }
    if (first > next && !lines.empty()) {
      const auto last = s->events.empty() ? Time{0} : s->events.back().time;
      s->events.push_back(
          {first - 1, std::max(last, lines.front().time), now, ports::lines_missing(first - next)});
    }
    for (const auto& line : lines) {
      const auto last = s->events.empty() ? Time{0} : s->events.back().time;
      s->events.push_back({s->next(), std::max(last, line.time), now, line.text});
    }
    return s->next();
  }

  Result<std::vector<ports::LogGroup>> groups(std::string_view prefix) override {
    const std::lock_guard lock(mutex_);
    std::vector<ports::LogGroup> out;
    for (const auto& [name, group] : groups_) {
      if (!name.starts_with(prefix)) continue;
      ports::LogGroup& g = out.emplace_back(ports::LogGroup{name, group.created, 0});
      for (const auto& [stream_name, stream] : group.streams) g.bytes += describe(stream_name, stream).bytes;
    }
    return out;
  }

  Result<std::vector<ports::LogStream>> streams(std::string_view group, std::string_view prefix) override {
    const std::lock_guard lock(mutex_);
    const auto g = groups_.find(group);
    if (g == groups_.end())
      return fail(ErrorCode::not_found, "log group " + std::string(group) + " does not exist");
    std::vector<ports::LogStream> out;
    for (const auto& [name, stream] : g->second.streams) {
      if (name.starts_with(prefix)) out.push_back(describe(name, stream));
    }
    return out;
  }

  Result<ports::LogPage> read(std::string_view group, std::string_view stream,
                              const ports::LogQuery& query) override {
    const std::lock_guard lock(mutex_);
    MUSTER_TRY(Stream * s, find(group, stream));
    return query.forward ? forward(*s, query) : backward(*s, query);
  }

  Result<void> remove(std::string_view group, std::string_view stream) override {
    const std::lock_guard lock(mutex_);
    const auto g = groups_.find(group);
    if (g != groups_.end()) {
      if (const auto s = g->second.streams.find(stream); s != g->second.streams.end())
        g->second.streams.erase(s);
    }
    return {};
  }

 private:
  Result<Stream*> find(std::string_view group, std::string_view stream) {
    const auto g = groups_.find(group);
    if (g == groups_.end())
      return fail(ErrorCode::not_found, "log group " + std::string(group) + " does not exist");
    const auto s = g->second.streams.find(stream);
    if (s == g->second.streams.end()) {
      return fail(ErrorCode::not_found,
                  "log stream " + std::string(stream) + " does not exist in " + std::string(group));
    }
    return &s->second;
  }

  static ports::LogStream describe(const std::string& name, const Stream& stream) {
    ports::LogStream out{.name = name,
                         .created = stream.created,
                         .first_event = {},
                         .last_event = {},
                         .last_ingested = {},
                         .next_sequence = stream.next(),
                         .bytes = 0};
    for (const auto& event : stream.events) out.bytes += event.text.size();
    if (!stream.events.empty()) {
      out.first_event = stream.events.front().time;
      out.last_event = stream.events.back().time;
      out.last_ingested = stream.events.back().ingested;
    }
    return out;
  }

  static bool fits(const ports::LogPage& page, const ports::LogQuery& query, std::size_t& bytes,
                   const ports::LogEvent& event) {
    const auto cost = event.text.size() + kEventOverhead;
    if (page.events.size() >= query.events_max || (!page.events.empty() && bytes + cost > query.bytes_max))
      return false;
    bytes += cost;
    return true;
  }

  static ports::LogPage forward(const Stream& stream, const ports::LogQuery& query) {
    ports::LogPage page;
    const auto from = query.sequence.value_or(0);
    page.forward_sequence = std::max(from, stream.next());  // unless the page ends earlier
    std::size_t bytes = 0;
    for (auto at = stream.find(from); at < stream.events.size(); ++at) {
      const auto& event = stream.events[at];
      if (query.start && event.time < *query.start) continue;
      if ((query.end && event.time >= *query.end) || !fits(page, query, bytes, event)) {
        page.forward_sequence = event.sequence;
        break;
      }
      page.events.push_back(event);
    }
    page.backward_sequence = page.events.empty() ? page.forward_sequence : page.events.front().sequence;
    return page;
  }

  static ports::LogPage backward(const Stream& stream, const ports::LogQuery& query) {
    ports::LogPage page;
    const auto end = std::min(query.sequence.value_or(stream.next()), stream.next());
    page.forward_sequence = page.backward_sequence = end;
    std::size_t bytes = 0;
    for (auto at = stream.find(end); at > 0; --at) {
      const auto& event = stream.events[at - 1];
      if (query.end && event.time >= *query.end) continue;
      if ((query.start && event.time < *query.start) || !fits(page, query, bytes, event)) break;
      page.events.push_back(event);
    }
    std::reverse(page.events.begin(), page.events.end());
    if (!page.events.empty()) {
      page.forward_sequence = page.events.back().sequence + 1;
      page.backward_sequence = page.events.front().sequence;
    }
    return page;
  }

  std::mutex mutex_;
  std::map<std::string, Group, std::less<>> groups_;
};

}  // namespace

std::unique_ptr<ports::LogStore> make_memory_log_store() { return std::make_unique<MemoryLogStore>(); }

}  // namespace muster::telemetry
