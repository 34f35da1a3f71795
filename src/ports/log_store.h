// Job logs: groups of streams of numbered lines. Thread-safe. Adapters: telemetry/logs (segment files),
// telemetry/memory. One contract suite.
//
// A stream has one writer. Lines are numbered from 0 and their times never go back, so (time, sequence) is
// one order. Numbers are missing only where damage has lost lines; lines_missing() stands at their end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"

namespace muster::ports {

struct LogLine {
  Time time;
  std::string text;  // raw bytes, without the newline; at most 256 KB: the writer splits
};

struct LogEvent {
  std::uint64_t sequence = 0;
  Time time;
  Time ingested;
  std::string text;  // raw bytes
};

struct LogStream {
  std::string name;
  Time created;
  std::optional<Time> first_event = {};
  std::optional<Time> last_event = {};
  std::optional<Time> last_ingested = {};
  std::uint64_t next_sequence = 0;
  std::uint64_t bytes = 0;
};

struct LogGroup {
  std::string name;
  Time created;
  std::uint64_t bytes = 0;
};

// A page of one stream. forward: from `sequence` on; backward: the lines before `sequence`. Events come
// oldest first either way.
struct LogQuery {
  bool forward = true;
  std::optional<std::uint64_t> sequence =
      {};                          // forward: first wanted (default the oldest); backward: end (newest)
  std::optional<Time> start = {};  // inclusive
  std::optional<Time> end = {};    // exclusive
  std::size_t events_max = 10'000;
  std::size_t bytes_max = 1 << 20;  // text plus 26 bytes an event, as CloudWatch counts
};

struct LogPage {
  std::vector<LogEvent> events;
  std::uint64_t forward_sequence = 0;   // where a forward read goes on
  std::uint64_t backward_sequence = 0;  // where a backward read goes on
};

inline std::string lines_missing(std::uint64_t count) {
  return "muster: " + std::to_string(count) + (count == 1 ? " line is" : " lines are") +
         " missing here: damage to the stored log has lost them";
}

class LogStore {
 public:
  virtual ~LogStore() = default;
  // Makes group and stream if they are not there. Visible on return, durable with the first append, which may
  // be an empty one.
  virtual Result<void> create(std::string_view group, std::string_view stream, Time now) = 0;
  // Idempotent: lines below the stream's next sequence are skipped. Where `first_sequence` is above it, lines
  // that had been acknowledged are lost: lines_missing() takes the number of the last of them, and the
  // numbers of the others stay empty, so that writers and readers keep their places. nullopt: whatever comes
  // next. Durable on return (grouped fdatasync, <= 50 ms). Answers the next sequence.
  virtual Result<std::uint64_t> append(std::string_view group, std::string_view stream,
                                       std::optional<std::uint64_t> first_sequence,
                                       std::span<const LogLine> lines, Time now) = 0;
  virtual Result<std::vector<LogGroup>> groups(std::string_view prefix) = 0;  // by name
  virtual Result<std::vector<LogStream>> streams(std::string_view group,
                                                 std::string_view prefix) = 0;  // by name
  virtual Result<LogPage> read(std::string_view group, std::string_view stream, const LogQuery& query) = 0;
  virtual Result<void> remove(std::string_view group, std::string_view stream) = 0;  // absent: success
};

}  // namespace muster::ports
