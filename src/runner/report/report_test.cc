#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "base/file.h"
#include "base/text.h"
#include "runner/report/reporter.h"
#include "runner/report/shipper.h"
#include "runner/report/spool.h"
#include "runner/supervise/lines.h"

namespace muster::runner {
namespace {

// A control plane in memory, with faults.
class FakeLink final : public ControlLink {
 public:
  Result<domain::ReportAnswer> report(const domain::RankReport& report) override {
    const std::lock_guard lock(mutex);
    if (fail_next-- > 0) return fail(ErrorCode::unavailable, "connection refused");
    if (stale) return fail(ErrorCode::cancelled, "gone");
    if (report.number <= reports.size()) return domain::ReportAnswer::duplicate;
    if (report.number > reports.size() + 1) return domain::ReportAnswer::gap;
    reports.push_back(report);
    if (lose_answers-- > 0) return fail(ErrorCode::unavailable, "reset");
    return domain::ReportAnswer::applied;
  }
  Result<domain::Desired> desired(std::uint64_t after) override {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(5), [&] { return want.version != after || cancelled; });
    if (cancelled) return fail(ErrorCode::cancelled, "cancelled");
    return want;
  }
  Result<std::uint64_t> logs(const wire::LogBatch& batch) override {
    const std::lock_guard lock(mutex);
    ++posts;
    if (fail_next-- > 0) return fail(ErrorCode::unavailable, "connection refused");
    if (refuse_logs) return fail(ErrorCode::invalid_argument, "400 no such stream");
    EXPECT_LE(batch.first_sequence, lines.size());
    auto sequence = batch.first_sequence;
    for (const auto& line : batch.lines) {
      if (sequence++ == lines.size()) lines.push_back(line);
    }
    changed.notify_all();
    if (lose_answers-- > 0) return fail(ErrorCode::unavailable, "reset");
    return lines.size();
  }
  Result<std::string> credentials() override { return std::string("{}"); }
  void cancel() override {
    const std::lock_guard lock(mutex);
    cancelled = true;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<domain::RankReport> reports;
  std::vector<wire::Line> lines;
  domain::Desired want;
  int fail_next = 0;
  int lose_answers = 0;
  int posts = 0;
  bool stale = false;
  bool refuse_logs = false;
  bool cancelled = false;
};

Patience::Options fast() {
  Patience::Options options;
  options.first_wait = Millis{1};
  options.last_wait = Millis{2};
  return options;
}

Result<void> ship(LogSpool& spool, FakeLink& link, Patience& patience) {
  std::promise<Result<void>> done;
  auto result = done.get_future();
  LogShipper shipper(spool, link, patience, [&](Result<void> r) { done.set_value(std::move(r)); });
  return result.get();
}

TEST(Spool, lines_come_out_as_they_went_in) {
  TempDir folder;
  auto spool = LogSpool::open(folder / "spool", {.segment_bytes = 300, .batch_lines = 7});
  ASSERT_TRUE(spool) << spool.error().message;
  for (int i = 0; i < 100; ++i) {
    (*spool)->append(Time{1000 - i}, std::string(static_cast<std::size_t>(i), static_cast<char>(i)));
    if (i % 3 == 0) (*spool)->flush();
  }
  (*spool)->close();
  (*spool)->append(Time{5000}, "too late");
  std::stop_source stop;
  std::uint64_t seen = 0;
  while ((*spool)->wait(stop.get_token())) {
    const auto batch = (*spool)->next_batch();
    ASSERT_TRUE(batch) << batch.error().message;
    EXPECT_EQ(batch->first_sequence, seen);
    EXPECT_LE(batch->lines.size(), 7U);
    for (const auto& line : batch->lines) {
      EXPECT_EQ(line.text, std::string(seen, static_cast<char>(seen)));
      EXPECT_EQ(line.time, Time{1000});  // time never goes back
      ++seen;
    }
    (*spool)->acknowledge(seen);
  }
  EXPECT_EQ(seen, 100U);
  EXPECT_LT((*spool)->bytes_waiting(), 700U);  // acknowledged segments are gone
}

TEST(Spool, a_dead_runners_spool_is_read_again_without_its_torn_end) {
  TempDir folder;
  {
    auto spool = LogSpool::open(folder / "spool", {.segment_bytes = 100});
    ASSERT_TRUE(spool);
    (*spool)->set_base(40);
    ASSERT_TRUE((*spool)->keep_base());
    for (int i = 0; i < 20; ++i) {
      (*spool)->append(Time{i + 1}, "line " + std::to_string(i));
      (*spool)->flush();
    }
    (*spool)->acknowledge(8);  // deletes whole segments only
  }
  std::string last;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "spool")) {
    if (entry.path().filename().string() > "log-" && entry.path().string() > last)
      last = entry.path().string();
  }
  std::ofstream(last, std::ios::app).write("\x50\0\0\0torn", 8);
  auto spool = LogSpool::open(folder / "spool");
  ASSERT_TRUE(spool) << spool.error().message;
  EXPECT_EQ((*spool)->base(), 40U);
  EXPECT_EQ((*spool)->end(), 20U);
  (*spool)->append(Time{1}, "after");
  (*spool)->close();
  FakeLink link;
  link.lines.resize(48);  // lines up to 8 had been taken
  Patience patience(fast());
  EXPECT_TRUE(ship(**spool, link, patience));
  ASSERT_EQ(link.lines.size(), 61U);
  EXPECT_EQ(link.lines[48].text, "line 8");
  EXPECT_EQ(link.lines[59].text, "line 19");
  EXPECT_EQ(link.lines[60].text, "after");
  EXPECT_EQ(link.lines[60].time, Time{20});
}

TEST(Spool, a_missing_segment_is_an_error) {
  TempDir folder;
  {
    auto spool = LogSpool::open(folder / "spool", {.segment_bytes = 10});
    for (int i = 0; i < 5; ++i) {
      (*spool)->append(Time{1}, "0123456789");
      (*spool)->flush();
    }
  }
  std::filesystem::remove(folder / "spool/log-00000000000000000002");
  const auto spool = LogSpool::open(folder / "spool");
  ASSERT_FALSE(spool);
  EXPECT_NE(spool.error().message.find("misses lines before 3"), std::string::npos) << spool.error().message;
}

TEST(Spool, beyond_the_bound_lines_are_counted_and_said) {
  TempDir folder;
  auto spool = LogSpool::open(folder / "spool", {.bytes_max = 10'000, .segment_bytes = 1'000});
  ASSERT_TRUE(spool);
  for (int i = 0; i < 1'000; ++i) {
    (*spool)->append(Time{1}, std::string(88, 'x'));
    (*spool)->flush();
  }
  EXPECT_LE((*spool)->bytes_waiting(), 10'000U);
  std::stop_source stop;
  std::vector<std::string> lines;
  const auto take = [&] {
    while (lines.size() < (*spool)->end() && (*spool)->wait(stop.get_token())) {
      const auto batch = (*spool)->next_batch();
      for (const auto& line : batch->lines) lines.push_back(line.text);
      (*spool)->acknowledge(lines.size());
    }
  };
  take();
  EXPECT_EQ(lines.size(), 100U);
  (*spool)->append(Time{2}, "again");
  (*spool)->close();
  take();
  ASSERT_EQ(lines.size(), 102U);
  EXPECT_EQ(lines[100], "muster: 900 lines dropped: the control plane was away and at most 9.8 KiB are kept");
  EXPECT_EQ(lines[101], "again");
}

TEST(Shipper, faults_lose_and_repeat_nothing) {
  TempDir folder;
  auto spool = LogSpool::open(folder / "spool", {.batch_lines = 10});
  for (int i = 0; i < 100; ++i) (*spool)->append(Time{i + 1}, std::to_string(i));
  (*spool)->close();
  FakeLink link;
  link.fail_next = 5;
  link.lose_answers = 3;
  Patience patience(fast());
  const auto result = ship(**spool, link, patience);
  ASSERT_TRUE(result) << result.error().message;
  ASSERT_EQ(link.lines.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(link.lines[static_cast<std::size_t>(i)].text, std::to_string(i));
}

// The number of its first line cannot be written, as on a disk that is full for a while.
TEST(Shipper, a_disk_that_is_full_for_a_while_stops_no_log) {
  TempDir folder;
  auto spool = LogSpool::open(folder / "spool");
  const std::filesystem::path in_the_way = folder / "spool/base.new";
  std::filesystem::create_directory(in_the_way);
  FakeLink link;
  link.lines.resize(7);
  Patience patience(fast());
  std::promise<Result<void>> done;
  LogShipper shipper(**spool, link, patience, [&](Result<void> r) { done.set_value(std::move(r)); });
  const auto send = [&](const std::string& line, std::size_t lines) {
    (*spool)->append(Time{1}, line);
    (*spool)->flush();
    std::unique_lock lock(link.mutex);
    ASSERT_TRUE(
        link.changed.wait_for(lock, std::chrono::seconds(5), [&] { return link.lines.size() == lines; }));
  };
  send("without", 8);
  EXPECT_FALSE(read_file(folder / "spool/base"));
  std::filesystem::remove(in_the_way);
  send("with", 9);
  EXPECT_EQ(read_file(folder / "spool/base").value(), "7\n");
  (*spool)->close();
  EXPECT_TRUE(done.get_future().get());
}

TEST(Shipper, refused_and_stale_end_with_the_reason) {
  for (const bool refused : {true, false}) {
    TempDir folder;
    auto spool = LogSpool::open(folder / "spool");
    (*spool)->append(Time{1}, "x");
    (*spool)->close();
    FakeLink link;
    link.refuse_logs = refused;
    link.fail_next = refused ? 0 : 1'000'000;
    auto options = fast();
    options.give_up = refused ? Millis{60'000} : Millis{30};
    Patience patience(options);
    const auto result = ship(**spool, link, patience);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, refused ? ErrorCode::failed_precondition : ErrorCode::timeout);
    EXPECT_NE(result.error().message.find(refused ? "400 no such stream" : "nothing was heard"),
              std::string::npos)
        << result.error().message;
  }
}

TEST(Shipper, hundred_megabytes_of_log_with_bounded_memory) {
  TempDir folder;
  auto spool = LogSpool::open(folder / "spool");
  FakeLink link;
  Patience patience(fast());
  std::promise<Result<void>> done;
  LogShipper shipper(**spool, link, patience, [&](Result<void> r) { done.set_value(std::move(r)); });
  const std::string line(199, 'y');
  constexpr std::size_t kLines = 500'000;
  for (std::size_t i = 0; i < kLines; ++i) (*spool)->append(Time{1}, line);
  (*spool)->close();
  EXPECT_TRUE(done.get_future().get());
  EXPECT_EQ(link.lines.size(), kLines);
}

TEST(Reporter, order_duplicates_and_delivery) {
  TempDir folder;
  FakeLink link;
  link.fail_next = 2;
  link.lose_answers = 1;
  Patience patience(fast());
  Reporter reporter(folder / "reports", link, patience, [](const Error& e) { ADD_FAILURE() << e.message; });
  for (std::uint64_t n = 1; n <= 4; ++n) {
    domain::RankReport report;
    report.launch = {domain::AttemptId{1}, 0, 1};
    report.number = n;
    reporter.send(report);
  }
  std::promise<void> delivered;
  reporter.when_delivered([&] { delivered.set_value(); });
  delivered.get_future().get();
  ASSERT_EQ(link.reports.size(), 4U);
  EXPECT_EQ(link.reports[3].number, 4U);
  std::ofstream(folder / "reports", std::ios::app) << "{\"launch\":\"a1-";
  const auto kept = read_reports(folder / "reports");
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->size(), 4U);
  EXPECT_TRUE(read_reports(folder / "none")->empty());
}

TEST(Reporter, stale_is_told_once) {
  TempDir folder;
  FakeLink link;
  link.stale = true;
  Patience patience(fast());
  std::promise<ErrorCode> lost;
  Reporter reporter(folder / "reports", link, patience, [&](const Error& e) { lost.set_value(e.code); });
  reporter.send({});
  EXPECT_EQ(lost.get_future().get(), ErrorCode::cancelled);
}

TEST(Poller, passes_every_change_on) {
  FakeLink link;
  Patience patience(fast());
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<domain::Desired> seen;
  Poller poller(
      link, patience,
      [&](const domain::Desired& desired) {
        const std::lock_guard lock(mutex);
        seen.push_back(desired);
        changed.notify_all();
      },
      [](const Error&) {});
  for (std::uint64_t version = 1; version <= 3; ++version) {
    {
      const std::lock_guard lock(link.mutex);
      link.want.version = version;
      link.want.target = domain::Target::run;
      link.changed.notify_all();
    }
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(5),
                                 [&] { return !seen.empty() && seen.back().version == version; }));
  }
  link.cancel();
}

}  // namespace
}  // namespace muster::runner
