// GetLogEvents and FilterLogEvents.
#include <algorithm>
#include <memory>
#include <queue>
#include <vector>

#include "api/logs/detail.h"
#include "api/logs/filter_pattern.h"
#include "base/crypto.h"
#include "base/text.h"

namespace muster::api::logs::detail {
namespace {

constexpr std::size_t kEventsMax = 10'000;
constexpr std::size_t kPageBytes = 1 << 20;
constexpr std::size_t kEventOverhead = 26;  // bytes CloudWatch counts an event beside its text
// FilterLogEvents reads ahead in each stream that it merges: with few streams kAheadMost, with more of them a
// share of kAheadTotal, but at least kAheadLeast, for the store reads blocks.
constexpr std::size_t kAheadMost = 64 << 10;
constexpr std::size_t kAheadLeast = 4 << 10;
constexpr std::size_t kAheadTotal = 4 << 20;
// FilterLogEvents answers a page, perhaps empty, with a token when it has looked at this much.
constexpr std::size_t kExaminedBytes = 32 << 20;

std::optional<Time> opt_time(const Object& request, std::string_view name) {
  const auto ms = json::opt_int(request, name);
  return ms ? std::optional(Time{*ms}) : std::nullopt;
}

std::size_t limit_of(const Object& request) {
  return static_cast<std::size_t>(json::opt_int(request, "limit").value_or(kEventsMax));
}

}  // namespace

ApiResult<Object> get_log_events(ports::LogStore& store, const Object& request, const Caller&) {
  auto group = group_of(request);
  if (!group) return tl::unexpected(group.error());
  ports::LogQuery query;
  query.start = opt_time(request, "startTime");
  query.end = opt_time(request, "endTime");
  query.events_max = limit_of(request);
  query.bytes_max = kPageBytes;
  query.forward = json::opt_bool(request, "startFromHead").value_or(false);
  if (const auto token = json::opt_string(request, "nextToken")) {
    const auto sequence =
        token->size() > 2 && (*token)[1] == '/' ? parse_int(token->substr(2)) : std::nullopt;
    if (!sequence || *sequence < 0 || ((*token)[0] != 'f' && (*token)[0] != 'b')) return bad_token();
    query.forward = (*token)[0] == 'f';
    query.sequence = static_cast<std::uint64_t>(*sequence);
  }
  const auto page = store.read(*group, json::opt_string(request, "logStreamName").value_or(""), query);
  if (!page) return translate(page.error());
  json::Array events;
  for (const auto& event : page->events) {
    events.push_back(Object{{"timestamp", event.time.unix_ms},
                            {"message", to_utf8_lossy(event.text)},
                            {"ingestionTime", event.ingested.unix_ms}});
  }
  Object answer;
  answer["events"] = std::move(events);
  answer["nextForwardToken"] = "f/" + std::to_string(page->forward_sequence);
  answer["nextBackwardToken"] = "b/" + std::to_string(page->backward_sequence);
  return answer;
}

namespace {

// Where a FilterLogEvents page ended: the last event looked at, in the order (time, stream, sequence).
struct Place {
  Time time;
  std::string stream;
  std::uint64_t sequence = 0;
};

std::string token_of(const Place& place) {
  return make_token('e', {std::to_string(place.time.unix_ms), place.stream, std::to_string(place.sequence)});
}

std::optional<Place> place_of(std::string_view token) {
  const auto fields = read_token('e', token);
  if (!fields || fields->size() != 3) return std::nullopt;
  const auto time = parse_int((*fields)[0]);
  const auto sequence = parse_int((*fields)[2]);
  if (!time || !sequence || *sequence < 0) return std::nullopt;
  return Place{{*time}, (*fields)[1], static_cast<std::uint64_t>(*sequence)};
}

// The events of one stream from a place on, read ahead a little. Nothing is read before its time has come:
// a group has a stream for each rank that ever ran.
class Source {
 public:
  // `due`: no event comes before.
  Source(std::string stream, const ports::LogQuery& query, Time due)
      : stream_(std::move(stream)), query_(query), due_(due) {}

  const std::string& stream() const { return stream_; }
  Time due() const { return due_; }
  bool open() const { return at_ < page_.events.size(); }

  // Opens it; afterwards it is open unless the stream is at its end, or was removed meanwhile.
  Result<void> read(ports::LogStore& store, const std::string& group, std::size_t bytes_max) {
    query_.bytes_max = bytes_max;
    auto page = store.read(group, stream_, query_);
    if (!page && page.error().code == ErrorCode::not_found) return {};
    if (!page) return tl::unexpected(page.error());
    page_ = std::move(*page);
    at_ = 0;
    query_.sequence = page_.forward_sequence;
    if (open()) due_ = event().time;
    return {};
  }
  // Precondition of both: open().
  const ports::LogEvent& event() const { return page_.events[at_]; }
  void advance() {
    ++at_;
    if (open()) {
      due_ = event().time;
    } else {
      page_ = {};
    }
  }

 private:
  std::string stream_;
  ports::LogQuery query_;
  Time due_;
  ports::LogPage page_;
  std::size_t at_ = 0;
};

// Many sources in the order (time, stream, sequence).
class Merge {
 public:
  Merge(ports::LogStore& store, const std::string& group, std::vector<Source>& sources)
      : store_(store), group_(group) {
    for (auto& source : sources) next_.push(&source);
  }

  // The source with the next event; nullptr: there is none.
  Result<const Source*> top() {
    while (!next_.empty() && !next_.top()->open()) {
      auto* source = next_.top();
      next_.pop();
      const auto share = std::clamp(kAheadTotal / (open_ + 1), kAheadLeast, kAheadMost);
      MUSTER_CHECK(source->read(store_, group_, share));
      if (!source->open()) continue;
      ++open_;
      next_.push(source);
    }
    return next_.empty() ? nullptr : next_.top();
  }
  // Precondition: top() was not nullptr.
  void advance() {
    auto* source = next_.top();
    next_.pop();
    source->advance();
    if (!source->open()) --open_;
    next_.push(source);
  }

 private:
  struct Later {  // for a queue with the earliest on top; one that is not open may have an event that is
                  // first
    bool operator()(const Source* a, const Source* b) const {
      if (a->due() != b->due()) return a->due() > b->due();
      if (a->open() != b->open()) return a->open();
      return a->stream() > b->stream();
    }
  };
  ports::LogStore& store_;
  const std::string& group_;
  std::priority_queue<Source*, std::vector<Source*>, Later> next_;
  std::size_t open_ = 0;
};

// The streams that the request names and that have events.
ApiResult<std::vector<ports::LogStream>> streams_of(ports::LogStore& store, const std::string& group,
                                                    const Object& request) {
  const auto prefix = json::opt_string(request, "logStreamNamePrefix");
  const auto* names = json::opt_array(request, "logStreamNames");
  if (prefix && names != nullptr)
    return invalid("logStreamNamePrefix and logStreamNames cannot be given together");
  std::vector<ports::LogStream> out;
  if (names == nullptr) {
    auto streams = store.streams(group, prefix.value_or(""));
    if (!streams) return translate(streams.error());
    out = std::move(*streams);
  } else {
    auto list = json::string_list(*names);
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    for (const auto& name : list) {
      auto streams = store.streams(group, name);
      if (!streams) return translate(streams.error());
      std::erase_if(*streams, [&](const auto& stream) { return stream.name != name; });
      if (streams->empty()) {
        return refuse("ResourceNotFoundException", "The specified log stream does not exist: " + name);
      }
      out.push_back(std::move(streams->front()));
    }
  }
  std::erase_if(out, [](const auto& stream) { return !stream.first_event || !stream.last_event; });
  return out;
}

// Without those that cannot have an event between `place` and the request's times.
std::vector<Source> sources_of(const std::vector<ports::LogStream>& streams, const Object& request,
                               const std::optional<Place>& place) {
  std::vector<Source> out;
  for (const auto& stream : streams) {
    ports::LogQuery query;
    query.start = opt_time(request, "startTime");
    // endTime is inclusive here, unlike in GetLogEvents.
    if (const auto end = opt_time(request, "endTime")) query.end = *end + Millis{1};
    if (place) {
      const auto from = stream.name < place->stream ? place->time + Millis{1} : place->time;
      query.start = std::max(query.start.value_or(from), from);
      if (stream.name == place->stream) query.sequence = place->sequence + 1;
    }
    const auto due = std::max(*stream.first_event, query.start.value_or(*stream.first_event));
    if (*stream.last_event < due || (query.end && due >= *query.end)) continue;
    out.emplace_back(stream.name, query, due);
  }
  return out;
}

// Names an event for good: clients that ask again from the last time on drop what they have seen.
std::string event_id(const std::string& group, const std::string& stream, std::uint64_t sequence) {
  auto number = std::to_string(sequence);
  number.insert(0, 20 - number.size(), '0');
  return crypto::hex(crypto::sha256(group + '\0' + stream)).substr(0, 20) + number;
}

}  // namespace

ApiResult<Object> filter_log_events(ports::LogStore& store, const Object& request, const Caller&) {
  auto group = group_of(request);
  if (!group) return tl::unexpected(group.error());
  const auto pattern = FilterPattern::parse(json::opt_string(request, "filterPattern").value_or(""));
  if (!pattern) return translate(pattern.error());
  std::optional<Place> place;
  if (const auto token = json::opt_string(request, "nextToken")) {
    place = place_of(*token);
    if (!place) return bad_token();
  }
  const auto streams = streams_of(store, *group, request);
  if (!streams) return tl::unexpected(streams.error());
  auto sources = sources_of(*streams, request, place);
  Merge merge(store, *group, sources);
  const auto limit = limit_of(request);
  json::Array events;
  std::size_t bytes = 0;
  std::size_t examined = 0;
  bool more = false;
  for (;;) {
    const auto source = merge.top();
    if (!source) return translate(source.error());
    more = *source != nullptr;
    if (!more || events.size() >= limit || bytes >= kPageBytes || examined >= kExaminedBytes) break;
    const auto& stream = (*source)->stream();
    const auto& event = (*source)->event();
    place = Place{event.time, stream, event.sequence};
    const auto cost = event.text.size() + kEventOverhead;
    examined += cost;
    if (pattern->matches(event.text)) {
      bytes += cost;
      events.push_back(Object{{"logStreamName", stream},
                              {"timestamp", event.time.unix_ms},
                              {"message", to_utf8_lossy(event.text)},
                              {"ingestionTime", event.ingested.unix_ms},
                              {"eventId", event_id(*group, stream, event.sequence)}});
    }
    merge.advance();
  }
  Object answer;
  answer["events"] = std::move(events);
  answer["searchedLogStreams"] = json::Array();
  if (more) answer["nextToken"] = token_of(*place);
  return answer;
}

}  // namespace muster::api::logs::detail
