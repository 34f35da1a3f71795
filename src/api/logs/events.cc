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
constexpr std::size_t kEventOverhead = 26;         // bytes CloudWatch counts an event beside its text
constexpr std::size_t kReadAheadBytes = 64 << 10;  // of each stream that FilterLogEvents merges
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

// The events of one stream from a place on, read ahead a little.
class Source {
 public:
  Source(ports::LogStore& store, std::string group, std::string stream, ports::LogQuery query)
      : store_(store), group_(std::move(group)), stream_(std::move(stream)), query_(query) {
    query_.bytes_max = kReadAheadBytes;
  }

  // False when the stream is at its end, or was removed meanwhile.
  Result<bool> ready() {
    if (at_ < page_.events.size()) return true;
    if (ended_) return false;
    auto page = store_.read(group_, stream_, query_);
    if (!page && page.error().code == ErrorCode::not_found) return false;
    if (!page) return tl::unexpected(page.error());
    page_ = std::move(*page);
    at_ = 0;
    query_.sequence = page_.forward_sequence;
    ended_ = page_.events.empty();
    return !ended_;
  }
  const std::string& stream() const { return stream_; }
  // Precondition of both: ready().
  const ports::LogEvent& event() const { return page_.events[at_]; }
  void advance() { ++at_; }

 private:
  ports::LogStore& store_;
  const std::string group_;
  const std::string stream_;
  ports::LogQuery query_;
  ports::LogPage page_;
  std::size_t at_ = 0;
  bool ended_ = false;
};

struct Later {  // for a queue with the earliest on top
  bool operator()(const Source* a, const Source* b) const {
    if (a->event().time != b->event().time) return a->event().time > b->event().time;
    return a->stream() > b->stream();
  }
};

// The streams that the request names, and that can hold events from `start` on.
ApiResult<std::vector<std::string>> streams_of(ports::LogStore& store, const std::string& group,
                                               const Object& request, std::optional<Time> start) {
  const auto prefix = json::opt_string(request, "logStreamNamePrefix");
  const auto* names = json::opt_array(request, "logStreamNames");
  if (prefix && names != nullptr)
    return invalid("logStreamNamePrefix and logStreamNames cannot be given together");
  std::vector<std::string> out;
  const auto add = [&](const std::vector<ports::LogStream>& streams) {
    for (const auto& stream : streams) {
      if (stream.last_event && (!start || *stream.last_event >= *start)) out.push_back(stream.name);
    }
  };
  if (names == nullptr) {
    const auto streams = store.streams(group, prefix.value_or(""));
    if (!streams) return translate(streams.error());
    add(*streams);
    return out;
  }
  for (const auto& name : json::string_list(*names)) {
    auto streams = store.streams(group, name);
    if (!streams) return translate(streams.error());
    std::erase_if(*streams, [&](const auto& stream) { return stream.name != name; });
    if (streams->empty()) {
      return refuse("ResourceNotFoundException", "The specified log stream does not exist: " + name);
    }
    add(*streams);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<std::unique_ptr<Source>> sources_of(ports::LogStore& store, const std::string& group,
                                                const std::vector<std::string>& streams,
                                                const Object& request, const std::optional<Place>& place) {
  std::vector<std::unique_ptr<Source>> out;
  for (const auto& stream : streams) {
    ports::LogQuery query;
    query.start = opt_time(request, "startTime");
    // endTime is inclusive here, unlike in GetLogEvents.
    if (const auto end = opt_time(request, "endTime")) query.end = *end + Millis{1};
    if (place) {
      const auto from = stream < place->stream ? place->time + Millis{1} : place->time;
      query.start = std::max(query.start.value_or(from), from);
      if (stream == place->stream) query.sequence = place->sequence + 1;
    }
    out.push_back(std::make_unique<Source>(store, group, stream, query));
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
  const auto streams = streams_of(store, *group, request, opt_time(request, "startTime"));
  if (!streams) return tl::unexpected(streams.error());
  const auto sources = sources_of(store, *group, *streams, request, place);

  std::priority_queue<Source*, std::vector<Source*>, Later> next;
  const auto queue_up = [&](Source& source) -> Result<void> {
    MUSTER_TRY(const bool ready, source.ready());
    if (ready) next.push(&source);
    return {};
  };
  for (const auto& source : sources) {
    if (const auto queued = queue_up(*source); !queued) return translate(queued.error());
  }
  const auto limit = limit_of(request);
  json::Array events;
  std::size_t bytes = 0;
  std::size_t examined = 0;
  while (!next.empty() && events.size() < limit && bytes < kPageBytes && examined < kExaminedBytes) {
    Source& source = *next.top();
    next.pop();
    const auto& event = source.event();
    place = Place{event.time, source.stream(), event.sequence};
    const auto cost = event.text.size() + kEventOverhead;
    examined += cost;
    if (pattern->matches(event.text)) {
      bytes += cost;
      events.push_back(Object{{"logStreamName", source.stream()},
                              {"timestamp", event.time.unix_ms},
                              {"message", to_utf8_lossy(event.text)},
                              {"ingestionTime", event.ingested.unix_ms},
                              {"eventId", event_id(*group, source.stream(), event.sequence)}});
    }
    source.advance();
    if (const auto queued = queue_up(source); !queued) return translate(queued.error());
  }
  Object answer;
  answer["events"] = std::move(events);
  answer["searchedLogStreams"] = json::Array();
  if (!next.empty()) answer["nextToken"] = token_of(*place);
  return answer;
}

}  // namespace muster::api::logs::detail
