#include "api/logs/logs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "api/logs/filter_pattern.h"
#include "base/rng.h"
#include "telemetry/memory/log_store.h"

namespace muster::api::logs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGroup[] = "/aws/sagemaker/TrainingJobs";

class Logs : public ::testing::Test {
 protected:
  void put(const std::string& stream, std::initializer_list<std::pair<std::int64_t, std::string>> lines) {
    ASSERT_TRUE(store_->create(kGroup, stream, Time{1}));
    std::vector<ports::LogLine> list;
    for (const auto& [ms, text] : lines) list.push_back({Time{ms}, text});
    ASSERT_TRUE(store_->append(kGroup, stream, std::nullopt, list, Time{500}));
  }

  ApiResult<json::Object> call(const std::string& operation, std::string_view request) {
    const auto parsed = json::parse_object(request);
    EXPECT_TRUE(parsed) << request;
    const auto answer = operations_.at(operation)(*parsed, caller_);
    if (answer) {
      EXPECT_THAT(model_->check_output("logs", operation, *answer), IsEmpty());
    }
    return answer;
  }
  json::Object ok(const std::string& operation, std::string_view request) {
    const auto answer = call(operation, request);
    EXPECT_TRUE(answer) << answer.error().code << ": " << answer.error().error.message;
    return answer.value_or(json::Object{});
  }
  // "Code: message"
  std::string refused(const std::string& operation, std::string_view request) {
    const auto answer = call(operation, request);
    EXPECT_FALSE(answer) << request;
    return answer ? "" : answer.error().code + ": " + answer.error().error.message;
  }

  static std::vector<std::string> column(const json::Object& answer, std::string_view list,
                                         std::string_view member) {
    std::vector<std::string> out;
    const auto* items = json::opt_array(answer, list);
    EXPECT_NE(items, nullptr) << list;
    if (items == nullptr) return out;
    for (const auto& item : *items) out.push_back(*json::opt_string(item.as_object(), member));
    return out;
  }
  static std::vector<std::string> messages(const json::Object& answer) {
    return column(answer, "events", "message");
  }

  std::unique_ptr<ports::LogStore> store_ = telemetry::make_memory_log_store();
  std::shared_ptr<const Model> model_ = Model::load();
  JsonOperations operations_ = operations(*store_, model_);
  Caller caller_{.account = "000000000000",
                 .access_key = "",
                 .region = "us-east-1",
                 .arn = "",
                 .request_id = "",
                 .now = {}};
};

TEST_F(Logs, DescribeLogStreamsShowsWhatClientsRead) {
  put("job-1/algo-2-17", {{20, "b"}});
  put("job-1/algo-1-17", {{10, "a"}, {30, "c"}});
  put("job-10/algo-1-17", {});
  const auto answer = ok(
      "DescribeLogStreams",
      R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamNamePrefix":"job-1/","orderBy":"LogStreamName"})");
  EXPECT_THAT(column(answer, "logStreams", "logStreamName"),
              ElementsAre("job-1/algo-1-17", "job-1/algo-2-17"));
  EXPECT_FALSE(answer.contains("nextToken"));
  const auto& first = answer.at("logStreams").as_array()[0].as_object();
  EXPECT_EQ(json::opt_int(first, "creationTime"), 1);
  EXPECT_EQ(json::opt_int(first, "firstEventTimestamp"), 10);
  EXPECT_EQ(json::opt_int(first, "lastEventTimestamp"), 30);
  EXPECT_EQ(json::opt_int(first, "lastIngestionTime"), 500);
  EXPECT_EQ(
      json::opt_string(first, "arn"),
      "arn:aws:logs:us-east-1:000000000000:log-group:/aws/sagemaker/TrainingJobs:log-stream:job-1/algo-1-17");
  const auto empty = ok("DescribeLogStreams",
                        R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamNamePrefix":"job-10/"})");
  EXPECT_FALSE(empty.at("logStreams").as_array()[0].as_object().contains("lastEventTimestamp"));
}

TEST_F(Logs, DescribeLogStreamsPagesInEveryOrder) {
  for (int i = 0; i < 120; ++i) put("s" + std::to_string(i), {{(i * 37) % 50, "x"}});
  for (const std::string order : {"", R"(,"orderBy":"LastEventTime")"}) {
    for (const std::string direction : {"", R"(,"descending":true)"}) {
      for (const int limit : {1, 7, 50}) {
        std::vector<std::pair<std::int64_t, std::string>> seen;
        std::string token;
        do {
          const auto answer =
              ok("DescribeLogStreams", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","limit":)" +
                                           std::to_string(limit) + order + direction + token + "}");
          const auto& list = answer.at("logStreams").as_array();
          EXPECT_LE(list.size(), static_cast<std::size_t>(limit));
          for (const auto& item : list) {
            seen.emplace_back(order.empty() ? 0 : *json::opt_int(item.as_object(), "lastEventTimestamp"),
                              *json::opt_string(item.as_object(), "logStreamName"));
          }
          const auto next = json::opt_string(answer, "nextToken");
          token = next ? R"(,"nextToken":")" + *next + '"' : "";
        } while (!token.empty());
        ASSERT_EQ(seen.size(), 120u);
        if (!direction.empty()) std::reverse(seen.begin(), seen.end());
        EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
        EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 120u);
      }
    }
  }
}

TEST_F(Logs, FiftyStreamsComeInOnePage) {  // some SDKs do not page
  for (int i = 0; i < 50; ++i) put("job/algo-" + std::to_string(i), {});
  const auto answer = ok("DescribeLogStreams",
                         R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamNamePrefix":"job/"})");
  EXPECT_EQ(answer.at("logStreams").as_array().size(), 50u);
  EXPECT_FALSE(answer.contains("nextToken"));
}

TEST_F(Logs, DescribeLogGroups) {
  put("s", {});
  ASSERT_TRUE(store_->create("/aws/batch/job", "s", Time{2}));
  const auto all = ok("DescribeLogGroups", "{}");
  EXPECT_THAT(column(all, "logGroups", "logGroupName"), ElementsAre("/aws/batch/job", kGroup));
  EXPECT_EQ(json::opt_string(all.at("logGroups").as_array()[0].as_object(), "arn"),
            "arn:aws:logs:us-east-1:000000000000:log-group:/aws/batch/job:*");
  const auto names = [&](std::string_view request) {
    return column(ok("DescribeLogGroups", request), "logGroups", "logGroupName");
  };
  EXPECT_THAT(names(R"({"logGroupNamePrefix":"/aws/s"})"), ElementsAre(kGroup));
  EXPECT_THAT(names(R"({"logGroupNamePattern":"BATCH"})"), ElementsAre("/aws/batch/job"));
  EXPECT_THAT(
      names(R"({"logGroupIdentifiers":["arn:aws:logs:us-east-1:000000000000:log-group:/aws/batch/job"]})"),
      ElementsAre("/aws/batch/job"));
  EXPECT_THAT(names(R"({"logGroupNamePrefix":"/none"})"), IsEmpty());
  const auto one = ok("DescribeLogGroups", R"({"limit":1})");
  EXPECT_THAT(names(R"({"limit":1,"nextToken":")" + *json::opt_string(one, "nextToken") + "\"}"),
              ElementsAre(kGroup));
}

// SageMaker SDK 3: startFromHead, then the kept nextForwardToken, until a page is empty; later on from there.
TEST_F(Logs, ReadingForwardUntilAPageIsEmpty) {
  put("s", {{1, "a"}, {2, "b"}, {3, "c"}});
  const std::string base =
      R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamName":"s","startFromHead":true,"limit":2)";
  std::vector<std::string> seen;
  std::string token;
  const auto round = [&] {
    for (;;) {
      const auto answer =
          ok("GetLogEvents", base + (token.empty() ? "" : R"(,"nextToken":")" + token + '"') + "}");
      const auto sent = token;
      token = *json::opt_string(answer, "nextForwardToken");
      if (messages(answer).empty()) {
        EXPECT_EQ(token, sent);  // torchx stops on this
        return;
      }
      for (auto& text : messages(answer)) seen.push_back(text);
    }
  };
  round();
  EXPECT_THAT(seen, ElementsAre("a", "b", "c"));
  round();
  put("s", {{4, "d"}});
  round();
  EXPECT_THAT(seen, ElementsAre("a", "b", "c", "d"));
}

TEST_F(Logs, ReadingBackwardFromTheEnd) {
  put("s", {{1, "a"}, {2, "b"}, {3, "c"}, {4, "d"}, {5, "e"}});
  const std::string base = R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamName":"s","limit":2)";
  auto answer = ok("GetLogEvents", base + "}");
  EXPECT_THAT(messages(answer), ElementsAre("d", "e"));
  const auto forward = *json::opt_string(answer, "nextForwardToken");
  answer =
      ok("GetLogEvents", base + R"(,"nextToken":")" + *json::opt_string(answer, "nextBackwardToken") + "\"}");
  EXPECT_THAT(messages(answer), ElementsAre("b", "c"));
  answer =
      ok("GetLogEvents", base + R"(,"nextToken":")" + *json::opt_string(answer, "nextBackwardToken") + "\"}");
  EXPECT_THAT(messages(answer), ElementsAre("a"));
  const auto first = *json::opt_string(answer, "nextBackwardToken");
  answer = ok("GetLogEvents", base + R"(,"nextToken":")" + first + "\"}");
  EXPECT_THAT(messages(answer), IsEmpty());
  EXPECT_EQ(json::opt_string(answer, "nextBackwardToken"), first);
  answer = ok("GetLogEvents", base + R"(,"nextToken":")" + forward + "\"}");
  EXPECT_THAT(messages(answer), IsEmpty());
}

// SageMaker SDK 2 asks again from the last time on (inclusive) and skips as many events as it saw at that
// time.
TEST_F(Logs, StartIsInclusiveAndEndExclusive) {
  put("s", {{1, "a"}, {2, "b"}, {2, "c"}, {3, "d"}});
  const std::string base =
      R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamName":"s","startFromHead":true)";
  EXPECT_THAT(messages(ok("GetLogEvents", base + R"(,"startTime":2})")), ElementsAre("b", "c", "d"));
  EXPECT_THAT(messages(ok("GetLogEvents", base + R"(,"startTime":2,"endTime":3})")), ElementsAre("b", "c"));
  EXPECT_THAT(messages(ok("GetLogEvents", base + R"(,"startTime":9})")), IsEmpty());
}

TEST_F(Logs, BytesThatAreNotUtf8AreShownAsReplacement) {
  put("s", {{1, std::string("a\xff\0z", 4)}});
  EXPECT_THAT(
      messages(ok(
          "GetLogEvents",
          R"({"logGroupIdentifier":"arn:aws:logs:us-east-1:000000000000:log-group:/aws/sagemaker/TrainingJobs","logStreamName":"s"})")),
      ElementsAre(std::string("a\xef\xbf\xbd\0z", 6)));
}

TEST_F(Logs, Refusals) {
  put("s", {});
  const struct {
    const char* operation;
    const char* request;
    const char* expected;
  } cases[] = {
      {"GetLogEvents", R"({"logGroupName":"/none","logStreamName":"s"})", "ResourceNotFoundException"},
      {"GetLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamName":"x"})",
       "ResourceNotFoundException"},
      {"GetLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs"})", "InvalidParameterException"},
      {"GetLogEvents", R"({"logStreamName":"s"})",
       "InvalidParameterException: logGroupName or logGroupIdentifier"},
      {"GetLogEvents", R"({"logGroupName":"a","logGroupIdentifier":"a","logStreamName":"s"})",
       "InvalidParameterException"},
      {"GetLogEvents", R"({"logGroupName":"a","logStreamName":"s","limit":10001})",
       "InvalidParameterException"},
      {"GetLogEvents", R"({"logGroupName":"a","logStreamName":7})", "InvalidParameterException"},
      {"GetLogEvents",
       R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamName":"s","nextToken":"f/-1"})",
       "nextToken is invalid"},
      {"GetLogEvents",
       R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamName":"s","nextToken":"g/1"})",
       "nextToken is invalid"},
      {"GetLogEvents",
       R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamName":"s","nextToken":"f"})",
       "nextToken is invalid"},
      {"DescribeLogStreams", R"({"logGroupName":"/none"})", "ResourceNotFoundException"},
      {"DescribeLogStreams", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","limit":51})",
       "InvalidParameterException"},
      {"DescribeLogStreams", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","nextToken":"zzz"})",
       "nextToken is invalid"},
      {"DescribeLogStreams",
       R"({"logGroupName":"/aws/sagemaker/TrainingJobs","orderBy":"LastEventTime","logStreamNamePrefix":"s"})",
       "LastEventTime"},
      {"DescribeLogGroups", R"({"logGroupNamePrefix":"a","logGroupNamePattern":"b"})",
       "InvalidParameterException"},
      {"FilterLogEvents", R"({"logGroupName":"/none"})", "ResourceNotFoundException"},
      {"FilterLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamNames":["x"]})",
       "ResourceNotFoundException"},
      {"FilterLogEvents",
       R"({"logGroupName":"/aws/sagemaker/TrainingJobs","logStreamNames":["s"],"logStreamNamePrefix":"s"})",
       "InvalidParameterException"},
      {"FilterLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","filterPattern":"{ $.a = 1 }"})",
       "not supported"},
      {"FilterLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","filterPattern":"\"open"})",
       "not closed"},
      {"FilterLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","nextToken":"f/1"})",
       "nextToken is invalid"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(refused(c.operation, c.request), HasSubstr(c.expected)) << c.request;
}

TEST(FilterPattern, Terms) {
  const struct {
    const char* pattern;
    const char* line;
    bool matches;
  } cases[] = {
      {"", "anything", true},
      {"  ", "", true},
      {"ERROR", "an ERROR here", true},
      {"ERROR", "an error here", false},
      {"ERROR disk", "disk: ERROR", true},
      {"ERROR disk", "ERROR", false},
      {"\"disk full\"", "the disk full", true},
      {"\"disk full\"", "full disk", false},
      {"\"say \\\"hi\\\"\"", "say \"hi\" now", true},
      {"ERROR -disk", "ERROR net", true},
      {"ERROR -disk", "ERROR disk", false},
      {"-\"disk full\"", "disk is full", true},
      {"?WARN ?ERROR", "WARN", true},
      {"?WARN ?ERROR", "INFO", false},
      {"?WARN net", "net only", true},
      {"?WARN -net", "INFO", true},
      {"loss=0.5", "step 1 loss=0.5", true},
      {"- a", "a - b", true},
      {"-", "no dash", false},
      {"\"\"", "anything", true},
  };
  for (const auto& c : cases) {
    const auto pattern = FilterPattern::parse(c.pattern);
    ASSERT_TRUE(pattern) << c.pattern;
    EXPECT_EQ(pattern->matches(c.line), c.matches) << c.pattern << " on " << c.line;
  }
}

TEST_F(Logs, FilterInterleavesByTime) {
  put("job/algo-1", {{1, "a1"}, {3, "a3"}, {3, "a3 again"}});
  put("job/algo-2", {{2, "b2"}, {3, "b3"}});
  put("other", {{2, "o2"}});
  const auto group = std::string(R"({"logGroupName":"/aws/sagemaker/TrainingJobs","interleaved":true)");
  EXPECT_THAT(messages(ok("FilterLogEvents", group + R"(,"logStreamNamePrefix":"job/"})")),
              ElementsAre("a1", "b2", "a3", "a3 again", "b3"));
  EXPECT_THAT(messages(ok("FilterLogEvents", group + R"(,"logStreamNames":["other","job/algo-2"]})")),
              ElementsAre("b2", "o2", "b3"));
  // endTime is inclusive in this operation
  EXPECT_THAT(messages(ok("FilterLogEvents", group + R"(,"startTime":2,"endTime":2})")),
              ElementsAre("b2", "o2"));
  EXPECT_THAT(messages(ok("FilterLogEvents", group + R"(,"filterPattern":"again"})")),
              ElementsAre("a3 again"));
  const auto answer = ok("FilterLogEvents", group + "}");
  EXPECT_FALSE(answer.contains("nextToken"));
  const auto ids = column(answer, "events", "eventId");
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 6u);
  EXPECT_EQ(ids, column(ok("FilterLogEvents", group + "}"), "events", "eventId"));
}

// Whatever the page size and the pattern, the pages together are the sorted, filtered events.
TEST_F(Logs, FilterPagesEqualOneSortedList) {
  Rng rng(5);
  std::vector<std::tuple<std::int64_t, std::string, std::uint64_t, std::string>> all;
  for (const std::string stream : {"a", "b", "c", "d"}) {
    ASSERT_TRUE(store_->create(kGroup, stream, Time{1}));
    std::int64_t time = 0;
    std::vector<ports::LogLine> lines;
    for (std::uint64_t i = 0; i < 150; ++i) {
      time += static_cast<std::int64_t>(rng.below(3));
      lines.push_back({Time{time}, (rng.below(3) == 0 ? "ERROR " : "info ") + stream + std::to_string(i)});
      all.emplace_back(time, stream, i, lines.back().text);
    }
    ASSERT_TRUE(store_->append(kGroup, stream, std::nullopt, lines, Time{500}));
  }
  std::sort(all.begin(), all.end());
  for (const bool filter : {false, true}) {
    std::vector<std::string> expected;
    for (const auto& [time, stream, sequence, text] : all) {
      if (time >= 20 && (!filter || text.starts_with("ERROR"))) expected.push_back(text);
    }
    for (const int limit : {1, 3, 64, 10'000}) {
      std::vector<std::string> seen;
      std::string token;
      do {
        const auto answer =
            ok("FilterLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","startTime":20,"limit":)" +
                                      std::to_string(limit) + (filter ? R"(,"filterPattern":"ERROR")" : "") +
                                      token + "}");
        for (auto& text : messages(answer)) seen.push_back(text);
        const auto next = json::opt_string(answer, "nextToken");
        token = next ? R"(,"nextToken":")" + *next + '"' : "";
      } while (!token.empty());
      ASSERT_EQ(seen, expected) << limit;
    }
  }
}

// A store that tells what was read.
class CountingStore final : public ports::LogStore {
 public:
  explicit CountingStore(ports::LogStore& store) : store_(store) {}
  std::set<std::string, std::less<>> streams_read;
  std::size_t bytes_read = 0;

  Result<void> create(std::string_view group, std::string_view stream, Time now) override {
    return store_.create(group, stream, now);
  }
  Result<std::uint64_t> append(std::string_view group, std::string_view stream,
                               std::optional<std::uint64_t> first, std::span<const ports::LogLine> lines,
                               Time now) override {
    return store_.append(group, stream, first, lines, now);
  }
  Result<std::vector<ports::LogGroup>> groups(std::string_view prefix) override {
    return store_.groups(prefix);
  }
  Result<std::vector<ports::LogStream>> streams(std::string_view group, std::string_view prefix) override {
    return store_.streams(group, prefix);
  }
  Result<ports::LogPage> read(std::string_view group, std::string_view stream,
                              const ports::LogQuery& query) override {
    auto page = store_.read(group, stream, query);
    streams_read.emplace(stream);
    for (const auto& event : page->events) bytes_read += event.text.size();
    return page;
  }
  Result<void> remove(std::string_view group, std::string_view stream) override {
    return store_.remove(group, stream);
  }

 private:
  ports::LogStore& store_;
};

std::string filter_request(int limit, const std::string& more = "") {
  return R"({"logGroupName": ")" + std::string(kGroup) + R"(", "limit": )" + std::to_string(limit) + more +
         "}";
}

TEST_F(Logs, FilterReadsAStreamWhenItsTimeHasCome) {
  for (int i = 0; i < 200; ++i) {
    put("job-" + std::to_string(i), {{10 * i, std::to_string(i)}, {10 * i + 5, "end"}});
  }
  CountingStore counting(*store_);
  operations_ = operations(counting, model_);
  const auto first = ok("FilterLogEvents", filter_request(3));
  EXPECT_THAT(messages(first), ElementsAre("0", "end", "1"));
  EXPECT_LE(counting.streams_read.size(), 3U);
  // Nor those that ended before the page.
  counting.streams_read.clear();
  const auto late = ok("FilterLogEvents", filter_request(2, R"(, "startTime": 1505, "endTime": 1510)"));
  EXPECT_THAT(messages(late), ElementsAre("end", "151"));
  EXPECT_THAT(counting.streams_read, ElementsAre("job-150", "job-151"));
  auto token = *json::opt_string(first, "nextToken");
  counting.streams_read.clear();
  const auto second = ok("FilterLogEvents", filter_request(2, R"(, "nextToken": ")" + token + "\""));
  EXPECT_THAT(messages(second), ElementsAre("end", "2"));
  EXPECT_EQ(counting.streams_read.count("job-0"), 0U);
  EXPECT_LE(counting.streams_read.size(), 3U);
}

TEST_F(Logs, FilterReadsAheadLessInMoreStreams) {
  const std::vector<ports::LogLine> lines(64, {Time{7}, std::string(1000, 'x')});
  for (int i = 0; i < 600; ++i) {
    const auto stream = "job/algo-" + std::to_string(i);
    ASSERT_TRUE(store_->create(kGroup, stream, Time{1}));
    ASSERT_TRUE(store_->append(kGroup, stream, std::nullopt, lines, Time{8}));
  }
  CountingStore counting(*store_);
  operations_ = operations(counting, model_);
  const auto page = ok("FilterLogEvents", filter_request(100));
  EXPECT_EQ(messages(page).size(), 100U);
  EXPECT_EQ(counting.streams_read.size(), 600U);  // all are due
  EXPECT_LE(counting.bytes_read, 16U << 20);      // of 38 MB
}

TEST_F(Logs, FilterStopsAtOneMegabyte) {
  ASSERT_TRUE(store_->create(kGroup, "s", Time{1}));
  const std::vector<ports::LogLine> lines(40, {Time{1}, std::string(100'000, 'x')});
  ASSERT_TRUE(store_->append(kGroup, "s", std::nullopt, lines, Time{1}));
  const auto answer = ok("FilterLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs"})");
  EXPECT_EQ(answer.at("events").as_array().size(), 11u);
  EXPECT_TRUE(answer.contains("nextToken"));
  // nothing matches, but the answer comes after a bounded part of the log
  const auto none =
      ok("FilterLogEvents", R"({"logGroupName":"/aws/sagemaker/TrainingJobs","filterPattern":"absent"})");
  EXPECT_THAT(messages(none), IsEmpty());
}

}  // namespace
}  // namespace muster::api::logs
