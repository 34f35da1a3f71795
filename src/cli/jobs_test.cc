#include "cli/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/text.h"
#include "cli/patience.h"

namespace muster::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers DescribeLogStreams and GetLogEvents of job "j" from memory, a page of two events at a time, and
// can be away.
class FakeLogs final : public net::Handler {
 public:
  struct Event {
    std::int64_t time = 0;
    std::string text;
  };

  FakeLogs() {
    auto server = net::Server::start({}, *this);
    EXPECT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  Client client() const {
    return Client::create({.url = "http://127.0.0.1:" + std::to_string(server_->port()),
                           .credentials = {"AK", "secret", ""}})
        .value();
  }
  void append(const std::string& stream, std::vector<Event> events) {
    const std::lock_guard lock(mutex_);
    auto& into = streams_[stream];
    into.insert(into.end(), events.begin(), events.end());
  }
  // Call number `nth` from now (1: the next) is refused with 503, as by a musterd that starts.
  void refuse(int nth) {
    const std::lock_guard lock(mutex_);
    refused_ = calls_ + nth;
  }

  std::variant<net::Route, net::Response> route(const net::RequestHead&) override {
    net::Route route;
    route.handle = [this](net::Request& request) { return handle(request); };
    return route;
  }

 private:
  net::Response handle(const net::Request& request) {
    const std::lock_guard lock(mutex_);
    net::Response response;
    if (++calls_ == refused_) {
      response.status = 503;
      response.body = "musterd is starting\n";
      return response;
    }
    const auto asked = json::parse_object(request.body).value();
    response.body = json::dump(asked.contains("logStreamName") ? events(asked) : streams());
    return response;
  }
  json::Object streams() const {
    json::Array list;
    for (const auto& [name, events] : streams_) list.emplace_back(json::Object{{"logStreamName", name}});
    return {{"logStreams", std::move(list)}};
  }
  json::Object events(const json::Object& asked) const {
    const auto& all = streams_.at(json::get_string(asked, "logStreamName").value());
    auto at = static_cast<std::size_t>(
        parse_int(json::opt_string(asked, "nextToken").value_or("f/0").substr(2)).value());
    json::Array page;
    for (; at < all.size() && page.size() < 2; ++at) {
      page.emplace_back(json::Object{{"timestamp", all[at].time}, {"message", all[at].text}});
    }
    return {{"events", std::move(page)}, {"nextForwardToken", "f/" + std::to_string(at)}};
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<Event>> streams_;
  int calls_ = 0;
  int refused_ = 0;
  std::unique_ptr<net::Server> server_;
};

TEST(CheckHost, NamesTheHostsThatThereAre) {
  JobFacts job;
  job.name = "j";
  job.nodes = 2;
  for (const auto* host : {"", "algo-1", "algo-2"}) EXPECT_TRUE(check_host(job, host)) << host;
  for (const auto* host : {"algo-0", "algo-3", "algo-01", "../x", "algo-"}) {
    const auto refused = check_host(job, host);
    ASSERT_FALSE(refused) << host;
    EXPECT_EQ(refused.error().code, ErrorCode::not_found);
    EXPECT_EQ(refused.error().message,
              "job j has no host \"" + std::string(host) + "\"; it has algo-1, algo-2");
  }
  job.nodes = 16;
  EXPECT_THAT(check_host(job, "x").error().message, HasSubstr("it has algo-1 to algo-16"));
}

class LogReaderTest : public ::testing::Test {
 protected:
  Result<void> read() {
    return reader_.read([this](const auto& line) { lines_.push_back(line.host + " " + line.text); });
  }
  FakeLogs logs_;
  Client client_ = logs_.client();
  LogReader reader_{client_, true, "j"};
  std::vector<std::string> lines_;
};

TEST_F(LogReaderTest, MergesPagesOfAllStreamsByTimeAndGoesOn) {
  logs_.append("j/algo-1-9", {{1, "a"}, {3, "c"}, {5, "e"}, {7, "g"}, {9, "i"}});
  logs_.append("j/algo-2-9", {{2, "b"}, {4, "d"}, {4, "d2"}});
  ASSERT_TRUE(read());
  EXPECT_THAT(lines_, ElementsAre("algo-1 a", "algo-2 b", "algo-1 c", "algo-2 d", "algo-2 d2", "algo-1 e",
                                  "algo-1 g", "algo-1 i"));
  lines_.clear();
  ASSERT_TRUE(read());
  EXPECT_THAT(lines_, ElementsAre());
  logs_.append("j/algo-2-9", {{8, "late"}});
  ASSERT_TRUE(read());
  EXPECT_THAT(lines_, ElementsAre("algo-2 late"));
}

TEST_F(LogReaderTest, AServiceThatIsAwayCostsNoLineAndRepeatsNone) {
  const std::vector<std::string> all = {"algo-1 a", "algo-2 b", "algo-1 c", "algo-2 d", "algo-1 e"};
  for (int nth = 1; nth <= 6; ++nth) {  // an undisturbed read: a look at the streams and five pages
    FakeLogs logs;
    logs.append("j/algo-1-9", {{1, "a"}, {3, "c"}, {5, "e"}});
    logs.append("j/algo-2-9", {{2, "b"}, {4, "d"}});
    auto client = logs.client();
    LogReader reader(client, true, "j");
    std::vector<std::string> lines;
    logs.refuse(nth);
    int tries = 0;
    const auto done = patiently({.pause = Millis{1}}, [&] {
      ++tries;
      return reader.read([&](const auto& line) { lines.push_back(line.host + " " + line.text); });
    });
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(lines, all) << "call " << nth << " refused";
    EXPECT_EQ(tries, 2) << nth;
  }
}

TEST(Patience, WaitsOnlyForAServiceThatIsAwayAndNotForEver) {
  int calls = 0;
  const Patience patience{.longest = Millis{20}, .pause = Millis{1}};
  const auto refused = patiently(patience, [&]() -> Result<int> {
    ++calls;
    return fail(ErrorCode::failed_precondition, "no");
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(refused.error().code, ErrorCode::failed_precondition);
  const auto away = patiently(patience, [&]() -> Result<int> {
    ++calls;
    return fail(ErrorCode::unavailable, "away");
  });
  EXPECT_GT(calls, 3);
  EXPECT_EQ(away.error().code, ErrorCode::unavailable);
  calls = 0;
  EXPECT_EQ(patiently(patience,
                      [&]() -> Result<int> {
                        if (++calls < 3) return fail(ErrorCode::unavailable, "away");
                        return 7;
                      })
                .value(),
            7);
}

TEST(Client, AnAnswerThatIsNoJsonSaysWhat) {
  FakeLogs logs;
  auto client = logs.client();
  logs.refuse(1);
  const auto answer = client.account();
  EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
  EXPECT_THAT(answer.error().message, HasSubstr("503: musterd is starting"));
}

}  // namespace
}  // namespace muster::cli
