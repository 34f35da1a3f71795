// The contract suite of ports::LogStore, on the memory and the file adapter, and what is the file adapter's
// own: restart, torn tails, damage, full disk.
#include "telemetry/logs/log_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/file.h"
#include "base/rng.h"
#include "telemetry/logs/record.h"
#include "telemetry/memory/log_store.h"

namespace muster::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGroup[] = "/aws/sagemaker/TrainingJobs";
constexpr char kStream[] = "job/algo-1-1700000000";

std::vector<ports::LogLine> lines_of(std::initializer_list<std::pair<std::int64_t, std::string>> list) {
  std::vector<ports::LogLine> out;
  for (const auto& [ms, text] : list) out.push_back({Time{ms}, text});
  return out;
}

std::vector<std::string> texts(const ports::LogPage& page) {
  std::vector<std::string> out;
  for (const auto& event : page.events) out.push_back(event.text);
  return out;
}

ports::LogPage read(ports::LogStore& store, const ports::LogQuery& query = {},
                    std::string_view stream = kStream) {
  auto page = store.read(kGroup, stream, query);
  EXPECT_TRUE(page) << page.error().message;
  return page.value_or(ports::LogPage{});
}

std::unique_ptr<ports::LogStore> open_files(const std::string& folder,
                                            std::uint64_t segment_bytes_max = 64 << 20) {
  auto store = open_log_store(folder, {.segment_bytes_max = segment_bytes_max});
  EXPECT_TRUE(store) << store.error().message;
  EXPECT_THAT(store->notices, IsEmpty());
  return std::move(store->store);
}

enum class Kind { memory, files, small_segments };

class LogStoreContract : public ::testing::TestWithParam<Kind> {
 protected:
  LogStoreContract() {
    switch (GetParam()) {
      case Kind::memory:
        store_ = make_memory_log_store();
        break;
      case Kind::files:
        store_ = open_files(folder_ / "logs");
        break;
      case Kind::small_segments:
        store_ = open_files(folder_ / "logs", 300);
        break;
    }
  }
  void create(std::string_view stream = kStream) { ASSERT_TRUE(store_->create(kGroup, stream, Time{5})); }
  std::uint64_t append(std::optional<std::uint64_t> first, const std::vector<ports::LogLine>& lines,
                       std::string_view stream = kStream) {
    const auto next = store_->append(kGroup, stream, first, lines, Time{1000});
    EXPECT_TRUE(next) << next.error().message;
    return next.value_or(~0ULL);
  }

  TempDir folder_;
  std::unique_ptr<ports::LogStore> store_;
};

INSTANTIATE_TEST_SUITE_P(All, LogStoreContract,
                         ::testing::Values(Kind::memory, Kind::files, Kind::small_segments));

TEST_P(LogStoreContract, AppendedLinesAreRead) {
  create();
  const std::string binary("\0\xff\n\r", 4);
  EXPECT_EQ(append(0, lines_of({{10, "one"}, {11, ""}, {11, binary}})), 3u);
  const auto page = read(*store_);
  EXPECT_THAT(texts(page), ElementsAre("one", "", binary));
  EXPECT_EQ(page.events[1].sequence, 1u);
  EXPECT_EQ(page.events[1].time, Time{11});
  EXPECT_EQ(page.events[1].ingested, Time{1000});
  EXPECT_EQ(page.forward_sequence, 3u);
  EXPECT_EQ(page.backward_sequence, 0u);
}

TEST_P(LogStoreContract, AppendIsIdempotent) {
  create();
  EXPECT_EQ(append(0, lines_of({{1, "a"}, {2, "b"}})), 2u);
  EXPECT_EQ(append(0, lines_of({{1, "a"}, {2, "b"}})), 2u);
  EXPECT_EQ(append(1, lines_of({{2, "b"}, {3, "c"}})), 3u);
  EXPECT_EQ(append(std::nullopt, lines_of({{4, "d"}})), 4u);
  EXPECT_EQ(append(2, {}), 4u);
  EXPECT_THAT(texts(read(*store_)), ElementsAre("a", "b", "c", "d"));
}

TEST_P(LogStoreContract, LostLinesAreSaidAndTheirNumbersStayEmpty) {
  create();
  EXPECT_EQ(append(7, {}), 0u);
  EXPECT_EQ(append(1, lines_of({{8, "b"}})), 2u);
  EXPECT_EQ(append(7, {}), 2u);
  for (int twice = 0; twice < 2; ++twice) EXPECT_EQ(append(5, lines_of({{7, "f"}, {9, "g"}})), 7u);
  EXPECT_EQ(append(7, lines_of({{10, "h"}})), 8u);
  const auto page = read(*store_);
  EXPECT_THAT(texts(page), ElementsAre(ports::lines_missing(1), "b", ports::lines_missing(3), "f", "g", "h"));
  std::vector<std::uint64_t> sequences;
  std::vector<std::int64_t> times;
  for (const auto& event : page.events) {
    sequences.push_back(event.sequence);
    times.push_back(event.time.unix_ms);
  }
  EXPECT_THAT(sequences, ElementsAre(0, 1, 4, 5, 6, 7));
  EXPECT_THAT(times, ElementsAre(8, 8, 8, 8, 9, 10));
  EXPECT_EQ(read(*store_, {.sequence = 3}).events.front().sequence, 4u);
  const auto stream = store_->streams(kGroup, "")->at(0);
  EXPECT_EQ(stream.next_sequence, 8u);
  EXPECT_EQ(stream.first_event, Time{8});
}

TEST_P(LogStoreContract, TimesDoNotGoBack) {
  create();
  append(0, lines_of({{10, "a"}, {7, "b"}}));
  append(2, lines_of({{3, "c"}, {11, "d"}}));
  std::vector<std::int64_t> times;
  for (const auto& event : read(*store_).events) times.push_back(event.time.unix_ms);
  EXPECT_THAT(times, ElementsAre(10, 10, 10, 11));
}

TEST_P(LogStoreContract, UnknownNamesAndBadNames) {
  EXPECT_EQ(store_->append(kGroup, kStream, 0, {}, Time{1}).error().code, ErrorCode::not_found);
  EXPECT_EQ(store_->read(kGroup, kStream, {}).error().code, ErrorCode::not_found);
  EXPECT_EQ(store_->streams(kGroup, "").error().code, ErrorCode::not_found);
  create();
  EXPECT_EQ(store_->read(kGroup, "other", {}).error().code, ErrorCode::not_found);
  EXPECT_EQ(store_->create("", "s", Time{1}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(store_->create("g", std::string(513, 'x'), Time{1}).error().code, ErrorCode::invalid_argument);
}

TEST_P(LogStoreContract, ALineAboveTheLimitIsRefusedWhole) {
  create();
  const auto refused = store_->append(kGroup, kStream, 0,
                                      lines_of({{1, "a"}, {2, std::string((256 << 10) + 1, 'x')}}), Time{1});
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(read(*store_).events, IsEmpty());
  EXPECT_EQ(append(0, lines_of({{1, std::string(256 << 10, 'x')}})), 1u);
}

TEST_P(LogStoreContract, ListsInOrderOfNames) {
  create("job-b/algo-1");
  create("job-a/algo-2");
  create("job-a/algo-1");
  create("job-a/algo-1");  // again: no change
  append(0, lines_of({{20, "four"}, {30, "five!"}}), "job-a/algo-2");
  ASSERT_TRUE(store_->create("/aws/batch/job", "x", Time{6}));
  std::vector<std::string> names;
  const auto streams = store_->streams(kGroup, "job-a/");
  ASSERT_TRUE(streams);
  ASSERT_EQ(streams->size(), 2u);
  EXPECT_EQ((*streams)[0].name, "job-a/algo-1");
  EXPECT_EQ((*streams)[0].created, Time{5});
  EXPECT_EQ((*streams)[0].first_event, std::nullopt);
  EXPECT_EQ((*streams)[0].last_ingested, std::nullopt);
  const auto& two = (*streams)[1];
  EXPECT_EQ(two.first_event, Time{20});
  EXPECT_EQ(two.last_event, Time{30});
  EXPECT_EQ(two.last_ingested, Time{1000});
  EXPECT_EQ(two.next_sequence, 2u);
  EXPECT_EQ(two.bytes, 9u);
  const auto groups = store_->groups("/aws/");
  ASSERT_TRUE(groups);
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0].name, "/aws/batch/job");
  EXPECT_EQ((*groups)[1].created, Time{5});
  EXPECT_THAT(*store_->groups("/x"), IsEmpty());
}

TEST_P(LogStoreContract, NamesOfEveryKind) {
  const std::string hostile[] = {"..",
                                 ".",
                                 "a/../../b",
                                 "%2F",
                                 "a b#c",
                                 "\xe6\xbc\xa2",
                                 std::string(512, 'x'),
                                 std::string(511, 'x') + "y",
                                 "a.00000000000000000000.log",
                                 "~",
                                 "A",
                                 "a"};
  for (const auto& name : hostile) {
    create(name);
    append(0, lines_of({{1, name}}), name);
  }
  for (const auto& name : hostile) EXPECT_THAT(texts(read(*store_, {}, name)), ElementsAre(name));
  EXPECT_EQ(store_->streams(kGroup, "")->size(), std::size(hostile));
}

TEST_P(LogStoreContract, RemovedStreamsAreGone) {
  create();
  append(0, lines_of({{1, "a"}}));
  ASSERT_TRUE(store_->remove(kGroup, kStream));
  ASSERT_TRUE(store_->remove(kGroup, kStream));
  ASSERT_TRUE(store_->remove("no such group", kStream));
  EXPECT_EQ(store_->read(kGroup, kStream, {}).error().code, ErrorCode::not_found);
  EXPECT_THAT(*store_->streams(kGroup, ""), IsEmpty());
  create();
  EXPECT_THAT(read(*store_).events, IsEmpty());
  EXPECT_EQ(append(0, lines_of({{1, "new"}})), 1u);
}

TEST_P(LogStoreContract, EndsEchoTheirPlace) {
  create();
  auto page = read(*store_);
  EXPECT_EQ(page.forward_sequence, 0u);
  EXPECT_EQ(page.backward_sequence, 0u);
  append(0, lines_of({{1, "a"}, {2, "b"}}));
  page = read(*store_, {.sequence = 2});
  EXPECT_THAT(page.events, IsEmpty());
  EXPECT_EQ(page.forward_sequence, 2u);
  page = read(*store_, {.forward = false, .sequence = 0});
  EXPECT_THAT(page.events, IsEmpty());
  EXPECT_EQ(page.backward_sequence, 0u);
  page = read(*store_, {.start = Time{100}});
  EXPECT_THAT(page.events, IsEmpty());
  EXPECT_EQ(page.forward_sequence, 2u);
  page = read(*store_, {.end = Time{2}});
  EXPECT_THAT(texts(page), ElementsAre("a"));
  EXPECT_EQ(page.forward_sequence, 1u);
}

// Every query against a plain filter over all events; and paging in both directions sees each event once.
TEST_P(LogStoreContract, QueriesEqualAPlainFilter) {
  create();
  Rng rng(11);
  std::vector<ports::LogEvent> all;
  std::uint64_t next = 0;
  std::int64_t time = 100;
  const auto add = [&](std::string text) {
    all.push_back({next++, Time{time}, Time{1000}, std::move(text)});
    return ports::LogLine{all.back().time, all.back().text};
  };
  while (all.size() < 400) {
    std::vector<ports::LogLine> batch;
    if (const auto lost = rng.below(8) == 0 ? 1 + rng.below(40) : 0; lost > 0) {
      next += lost - 1;
      add(ports::lines_missing(lost));
    }
    const auto first = next;
    for (auto n = 1 + rng.below(20); n > 0; --n) {
      batch.push_back(
          add("line " + std::to_string(next) + std::string(rng.below(3) == 0 ? rng.below(9000) : 0, 'x')));
      time += static_cast<std::int64_t>(rng.below(3));
    }
    append(first, batch);
  }
  for (int round = 0; round < 300; ++round) {
    ports::LogQuery query;
    query.forward = rng.below(2) == 0;
    if (rng.below(2) == 0) query.sequence = rng.below(next + 10);
    if (rng.below(2) == 0) query.start = Time{static_cast<std::int64_t>(90 + rng.below(420))};
    if (rng.below(2) == 0) query.end = Time{static_cast<std::int64_t>(90 + rng.below(420))};
    query.events_max = 1 + rng.below(500);
    if (rng.below(2) == 0) query.bytes_max = 1 + rng.below(100'000);
    std::vector<std::size_t> expected;  // of `all`
    std::size_t bytes = 0;
    for (std::size_t n = 0; n < all.size(); ++n) {
      const auto i = query.forward ? n : all.size() - 1 - n;
      const auto& event = all[i];
      if (query.sequence &&
          (query.forward ? event.sequence < *query.sequence : event.sequence >= *query.sequence))
        continue;
      if ((query.start && event.time < *query.start) || (query.end && event.time >= *query.end)) continue;
      const auto cost = event.text.size() + 26;
      if (expected.size() == query.events_max || (!expected.empty() && bytes + cost > query.bytes_max)) break;
      bytes += cost;
      expected.push_back(i);
    }
    if (!query.forward) std::reverse(expected.begin(), expected.end());
    const auto got = read(*store_, query).events;
    ASSERT_EQ(got.size(), expected.size()) << "round " << round;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sequence, all[expected[i]].sequence) << "round " << round;
      EXPECT_EQ(got[i].text, all[expected[i]].text);
      EXPECT_EQ(got[i].time, all[expected[i]].time);
    }
  }
  for (const bool forward : {true, false}) {
    std::vector<std::uint64_t> seen;
    ports::LogQuery query{.forward = forward, .sequence = {}, .start = {}, .end = {}, .events_max = 7};
    for (;;) {
      const auto page = read(*store_, query);
      if (page.events.empty()) break;
      for (const auto& event : page.events) seen.push_back(event.sequence);
      query.sequence = forward ? page.forward_sequence : page.backward_sequence;
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), all.size());
    EXPECT_EQ(seen.back(), all.back().sequence);
  }
}

TEST_P(LogStoreContract, WritersAndReadersTogether) {
  constexpr int kLines = 60;
  const std::vector<std::string> names = {"a", "b", "c"};
  for (const auto& name : names) create(name);
  std::vector<std::jthread> threads;
  for (const auto& name : names) {
    threads.emplace_back([&, name] {
      for (std::uint64_t i = 0; i < kLines; ++i)
        append(i, lines_of({{static_cast<std::int64_t>(i), std::to_string(i)}}), name);
    });
    threads.emplace_back([&, name] {
      std::uint64_t next = 0;
      while (next < kLines) {
        const auto page = read(*store_, {.sequence = next}, name);
        for (const auto& event : page.events) EXPECT_EQ(event.text, std::to_string(next++));
        EXPECT_EQ(page.forward_sequence, next);
      }
    });
  }
}

// ---- the file adapter alone

std::vector<std::string> segment_files(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".log") out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void fill(ports::LogStore& store, int lines) {
  ASSERT_TRUE(store.create(kGroup, kStream, Time{5}));
  for (int i = 0; i < lines; ++i) {
    ASSERT_TRUE(store.append(kGroup, kStream, std::nullopt, lines_of({{i, "line " + std::to_string(i)}}),
                             Time{1000}));
  }
}

TEST(FileLogStore, ARestartFindsEverything) {
  TempDir folder;
  fill(*open_files(folder.path(), 500), 50);
  EXPECT_GT(segment_files(folder.path()).size(), 3u);
  const auto again = open_files(folder.path(), 500);
  const auto streams = again->streams(kGroup, "");
  ASSERT_EQ(streams->size(), 1u);
  EXPECT_EQ((*streams)[0].name, kStream);
  EXPECT_EQ((*streams)[0].created, Time{5});
  EXPECT_EQ((*streams)[0].next_sequence, 50u);
  EXPECT_EQ((*streams)[0].first_event, Time{0});
  EXPECT_EQ((*streams)[0].last_event, Time{49});
  EXPECT_EQ((*again->groups(""))[0].created, Time{5});
  EXPECT_EQ(read(*again).events.size(), 50u);
  EXPECT_EQ(again->append(kGroup, kStream, 50, lines_of({{1, "back in time"}}), Time{1}), 51u);
  EXPECT_EQ(read(*again).events.back().time, Time{49});
}

// A crash may leave any number of the last append's bytes, and garbage or zeros behind them.
TEST(FileLogStore, ATornTailIsCutAtEveryByte) {
  TempDir source;
  fill(*open_files(source.path()), 3);
  const auto file = segment_files(source.path())[0];
  const auto whole = *read_file(file);
  const auto record_bytes = kRecordHeaderBytes + 6;
  const auto two = whole.size() - record_bytes;
  const std::string junk[] = {"", std::string(100, '\0'), "junk"};
  for (std::size_t size = two; size < whole.size(); ++size) {
    ASSERT_TRUE(write_file_atomic(file, whole.substr(0, size) + junk[size % 3]));
    const auto store = open_files(source.path());
    ASSERT_EQ(read(*store).events.size(), 2u) << size;
    ASSERT_EQ(store->append(kGroup, kStream, 2, lines_of({{7, "again"}}), Time{1}), 3u);
    ASSERT_THAT(texts(read(*open_files(source.path()))), ElementsAre("line 0", "line 1", "again"));
  }
}

// What was acknowledged before a SIGKILL is there after it, and sending again from any place changes nothing.
TEST(FileLogStore, AcknowledgedLinesSurviveAKill) {
  TempDir folder;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto opened = open_log_store(folder.path(), {.segment_bytes_max = 4000});
    if (!opened || !opened->store->create(kGroup, kStream, Time{5})) ::_exit(1);
    for (std::uint64_t i = 0;; ++i) {
      const auto next =
          opened->store->append(kGroup, kStream, i, lines_of({{1, "line " + std::to_string(i)}}), Time{1});
      if (!next || ::write(pipe_ends[1], &*next, sizeof *next) != sizeof *next) ::_exit(1);
    }
  }
  ::close(pipe_ends[1]);
  std::uint64_t acknowledged = 0;
  while (acknowledged < 100 &&
         ::read(pipe_ends[0], &acknowledged, sizeof acknowledged) == sizeof acknowledged) {
  }
  ::kill(child, SIGKILL);
  while (::read(pipe_ends[0], &acknowledged, sizeof acknowledged) == sizeof acknowledged) {
  }
  ::close(pipe_ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_GE(acknowledged, 100u);
  const auto store = open_files(folder.path(), 4000);
  const auto page = read(*store);
  ASSERT_GE(page.events.size(), acknowledged);
  for (const auto& event : page.events) EXPECT_EQ(event.text, "line " + std::to_string(event.sequence));
  EXPECT_EQ(store->append(kGroup, kStream, 0, lines_of({{1, "line 0"}}), Time{2}), page.events.size());
}

// A crash of the machine may leave the name of a stream that had no append, and nothing in the file.
TEST(FileLogStore, AStreamThatWasNeverDurableIsForgotten) {
  TempDir folder;
  {
    const auto store = open_files(folder.path());
    ASSERT_TRUE(store->create(kGroup, kStream, Time{5}));
    ASSERT_TRUE(store->create(kGroup, "whole", Time{5}));
    ASSERT_EQ(store->append(kGroup, "whole", 0, {}, Time{1}), 0u);
  }
  int emptied = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename().string().find("whole") != std::string::npos ||
        entry.path().extension() != ".log")
      continue;
    std::filesystem::resize_file(entry.path(), 0);
    ++emptied;
  }
  ASSERT_EQ(emptied, 1);
  const auto store = open_files(folder.path());
  const auto streams = store->streams(kGroup, "");
  ASSERT_TRUE(streams);
  ASSERT_EQ(streams->size(), 1u);
  EXPECT_EQ(streams->front().name, "whole");
  ASSERT_TRUE(store->create(kGroup, kStream, Time{6}));  // and can be made again
  EXPECT_EQ(store->append(kGroup, kStream, 0, lines_of({{1, "a"}}), Time{1}), 1u);
}

TEST(FileLogStore, ATornNewSegmentIsForgotten) {
  TempDir folder;
  fill(*open_files(folder.path()), 2);
  const auto file = segment_files(folder.path())[0];
  ASSERT_TRUE(
      write_file_atomic(file.substr(0, file.size() - 24) + "00000000000000000002.log.tmp-77", "MSTL"));
  EXPECT_EQ(read(*open_files(folder.path())).events.size(), 2u);
  std::filesystem::create_directories(folder / "half-made-group");
  EXPECT_EQ(open_files(folder.path())->groups("")->size(), 1u);
}

TEST(FileLogStore, DamageInTheLastSegmentIsKeptBesideIt) {
  TempDir folder;
  fill(*open_files(folder.path()), 5);
  const auto file = segment_files(folder.path())[0];
  auto bytes = *read_file(file);
  bytes[bytes.size() - 3 * (kRecordHeaderBytes + 6) + 33] ^= 1;  // in line 2
  ASSERT_TRUE(write_file_atomic(file, bytes));
  EXPECT_THAT(texts(read(*open_files(folder.path()))), ElementsAre("line 0", "line 1"));
  bool kept = false;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(file).parent_path())) {
    kept = kept || entry.path().string().find(".cut-") != std::string::npos;
  }
  EXPECT_TRUE(kept);

  // Its writer, who knows nothing of it, goes on behind what was cut.
  {
    const auto store = open_files(folder.path());
    EXPECT_EQ(store->append(kGroup, kStream, 5, lines_of({{9, "line 5"}}), Time{1}), 6u);
    const auto stream = store->streams(kGroup, "")->at(0);
    EXPECT_EQ(stream.bytes, 18 + ports::lines_missing(3).size());
  }
  const auto again = open_files(folder.path());
  EXPECT_THAT(texts(read(*again)), ElementsAre("line 0", "line 1", ports::lines_missing(3), "line 5"));
  EXPECT_EQ(again->append(kGroup, kStream, 5, lines_of({{9, "line 5"}}), Time{1}), 6u);
}

TEST(FileLogStore, DamageInAnOlderSegmentIsNamed) {
  TempDir folder;
  fill(*open_files(folder.path(), 300), 20);
  const auto file = segment_files(folder.path())[0];
  auto bytes = *read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  ASSERT_TRUE(write_file_atomic(file, bytes));
  const auto store = open_files(folder.path(), 300);
  const auto page = store->read(kGroup, kStream, {});
  EXPECT_EQ(page.error().code, ErrorCode::corrupt);
  EXPECT_THAT(page.error().message, HasSubstr(file));
  EXPECT_EQ(read(*store, {.sequence = 15}).events.size(), 5u);  // the rest can be read
}

TEST(FileLogStore, AStreamWithADamagedHeaderIsSetAside) {
  TempDir folder;
  {
    const auto store = open_files(folder.path(), 300);
    fill(*store, 20);
    ASSERT_TRUE(store->create(kGroup, "zz-other", Time{1}));
    ASSERT_TRUE(store->append(kGroup, "zz-other", 0, lines_of({{5, "here"}}), Time{6}));
  }
  const auto files = segment_files(folder.path());
  ASSERT_GT(files.size(), 3U);
  auto bytes = *read_file(files[1]);
  bytes[3] ^= 1;
  ASSERT_TRUE(write_file_atomic(files[1], bytes));
  {
    const auto opened = open_log_store(folder.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_THAT(opened->notices, ElementsAre(::testing::AllOf(HasSubstr(files[1]), HasSubstr(".damaged"))));
    EXPECT_THAT(texts(read(*opened->store, {}, "zz-other")), ElementsAre("here"));
    EXPECT_EQ(opened->store->read(kGroup, kStream, {}).error().code, ErrorCode::not_found);
    EXPECT_EQ(*read_file(files[1] + ".damaged"), bytes);
    EXPECT_TRUE(std::filesystem::exists(files[0] + ".damaged"));
    // The name is free, and the writer, who knows nothing of it, goes on where it was.
    ASSERT_TRUE(opened->store->create(kGroup, kStream, Time{5}));
    EXPECT_EQ(opened->store->append(kGroup, kStream, 20, lines_of({{1, "line 20"}}), Time{1}), 21U);
  }
  const auto again = open_log_store(folder.path());
  ASSERT_TRUE(again);
  EXPECT_THAT(again->notices, ElementsAre());  // it was told once
  EXPECT_THAT(texts(read(*again->store)), ElementsAre(ports::lines_missing(20), "line 20"));
  const auto stream = again->store->streams(kGroup, kStream)->at(0);
  EXPECT_EQ(stream.next_sequence, 21U);
  EXPECT_EQ(stream.first_event, Time{1});
}

// The disk full where a gap is told: what was begun is undone, and another writer may begin at the end.
TEST(FileLogStore, AFailedAppendBehindAGapLeavesNothing) {
  TempDir folder;
  const auto store = open_files(folder.path());
  fill(*store, 2);
  const auto lines = lines_of({{7, "seven"}, {8, std::string(300, 'x')}});
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit limit = old;
  limit.rlim_cur = 250;  // room for a header and the notice
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto failed = store->append(kGroup, kStream, 9, lines, Time{1});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_FALSE(failed);
  EXPECT_EQ(segment_files(folder.path()).size(), 2U);
  EXPECT_EQ(store->append(kGroup, kStream, 2, {}, Time{1}), 2U);
  EXPECT_EQ(segment_files(folder.path()).size(), 1U);
  EXPECT_EQ(store->append(kGroup, kStream, 4, lines, Time{1}), 6U);
  const auto texts_now = texts(read(*open_files(folder.path())));
  EXPECT_THAT(texts_now,
              ElementsAre("line 0", "line 1", ports::lines_missing(2), "seven", std::string(300, 'x')));
}

TEST(FileLogStore, ADamagedGroupIsKnownByItsStreams) {
  TempDir folder;
  fill(*open_files(folder.path()), 2);
  const auto file =
      (std::filesystem::path(segment_files(folder.path())[0]).parent_path() / "group.json").string();
  ASSERT_TRUE(write_file_atomic(file, "{"));
  {
    const auto opened = open_log_store(folder.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_THAT(opened->notices, ElementsAre(HasSubstr(file + ".damaged")));
  }
  EXPECT_EQ(read(*open_files(folder.path())).events.size(), 2U);
}

// The disk full in the middle of an append: nothing of it stays, and appending goes on when there is room.
TEST(FileLogStore, AFailedAppendLeavesNothing) {
  TempDir folder;
  const auto store = open_files(folder.path());
  fill(*store, 2);
  const auto size = std::filesystem::file_size(segment_files(folder.path())[0]);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  for (std::uint64_t more = 0; more < 150; more += 7) {
    rlimit limit = old;
    limit.rlim_cur = size + more;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const auto failed =
        store->append(kGroup, kStream, 2, lines_of({{7, "seven"}, {8, std::string(200, 'x')}}), Time{1});
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    ASSERT_FALSE(failed);
    EXPECT_EQ(read(*store).events.size(), 2u);
  }
  EXPECT_EQ(store->append(kGroup, kStream, 2, lines_of({{7, "seven"}}), Time{1}), 3u);
  EXPECT_EQ(read(*open_files(folder.path())).events.size(), 3u);
}

TEST(FileLogStore, LongStreamsAreReadByTheIndex) {
  TempDir folder;
  const auto store = open_files(folder.path(), 1 << 20);
  ASSERT_TRUE(store->create(kGroup, kStream, Time{0}));
  std::vector<ports::LogLine> batch;
  constexpr std::uint64_t kLines = 40'000;
  for (std::uint64_t i = 0; i < kLines; ++i) {
    batch.push_back({Time{static_cast<std::int64_t>(i / 3)}, std::string(80, 'a')});
    if (batch.size() == 5000) {
      ASSERT_TRUE(store->append(kGroup, kStream, std::nullopt, batch, Time{0}));
      batch.clear();
    }
  }
  const auto again = open_files(folder.path(), 1 << 20);
  for (auto* s : {store.get(), again.get()}) {
    EXPECT_EQ(read(*s, {.sequence = 35'000, .start = {}, .end = {}, .events_max = 2}).events[0].sequence,
              35'000u);
    const auto by_time = read(*s, {.start = Time{10'000}, .end = Time{10'001}});
    ASSERT_EQ(by_time.events.size(), 3u);
    EXPECT_EQ(by_time.events[0].sequence, 30'000u);
    const auto back =
        read(*s, {.forward = false, .sequence = {}, .start = {}, .end = Time{10'000}, .events_max = 2});
    EXPECT_EQ(back.events[1].sequence, 29'999u);
    EXPECT_EQ(read(*s).events.size(), 9892u);  // 1 MiB / (80 + 26)
  }
}

}  // namespace
}  // namespace muster::telemetry
