#include "wire/record/record.h"

#include <gtest/gtest.h>

namespace muster::wire {
namespace {

using namespace domain;

Job full_job() {
  Job job;
  job.id = {7};
  job.kind = JobKind::processing;
  job.name = "tokenise";
  job.nodes = 2;
  job.max_runtime = Millis{3'600'000};
  job.grace = Millis{5'000};
  job.retries = 3;
  job.created = {1'000};
  job.modified = {9'000};
  job.started = Time{2'000};
  job.ended = Time{9'000};
  job.phase = Phase::ended;
  job.stop = Stop{Cause::program, {8'000}, Millis{4'000}, "algo-2: \"boom\"\n", 3};
  job.end = End{Outcome::failed, Cause::program, "algo-2: \"boom\"\n", 3, "said \xC3\xA9"};
  job.attempt = {12};
  job.attempts = 2;
  job.ran = Millis{77};
  job.history = {{{1'000}, Phase::queued, false, 1, "Waiting for 2 nodes"},
                 {{9'000}, Phase::ended, true, 2, "Failed"}};
  return job;
}

Job plain_job() {
  Job job;
  job.id = {1};
  job.name = "plain";
  return job;
}

std::vector<Record> samples() {
  Attempt attempt;
  attempt.id = {12};
  attempt.job = {7};
  attempt.number = 2;
  attempt.created = {1'500};
  attempt.started = Time{2'000};
  attempt.ran = Millis{60'000};
  attempt.ranks = {{"node-1", 1, RankPhase::running, 3, {}},
                   {"node-2", 2, RankPhase::exited, 4, RankExit{std::nullopt, 9, Cause::user, "r", "m"}}};
  Workload workload;
  workload.job_name = "tokenise";
  workload.environment = {{"A", "b=\"c\""}};
  return {Counters{8, 13, 2, {9'000}},
          full_job(),
          plain_job(),
          attempt,
          JobRequest{{7}, R"({"a":1})", workload},
          Outbox{1, "forget-logs", "{}"},
          AccessKey{"AKIA1", std::string("\0\xff\x80", 3), "root", {5}}};
}

TEST(Record, EveryKindRoundTrips) {
  for (const auto& record : samples()) {
    const auto body = encode_record(record);
    const auto read = decode_record(kind_of(record), kRecordVersion, body);
    ASSERT_TRUE(read) << body << read.error().message;
    EXPECT_TRUE(*read == record) << body;
  }
}

TEST(Record, TextThatIsNotUtf8IsKeptReadable) {
  auto job = full_job();
  job.end->reason = "bad \xff byte";
  const auto read = decode_record(RecordKind::job, kRecordVersion, encode_record(job));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(std::get<Job>(*read).end->reason, "bad \xEF\xBF\xBD byte");
}

TEST(Record, ANewerVersionIsRefusedWithWhatToDo) {
  const auto read = decode_record(RecordKind::job, 2, "{}");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::unsupported);
  EXPECT_EQ(read.error().message,
            "record of kind 2 has version 2, this program reads 1: use the newer muster that wrote it");
}

TEST(Record, DamagedBodiesAreCorruptAndNamed) {
  EXPECT_EQ(decode_record(RecordKind::job, 1, "{").error().code, ErrorCode::corrupt);
  auto body = encode_record(full_job());
  body.replace(body.find("\"processing\""), 12, "\"procession\"");
  const auto read = decode_record(RecordKind::job, 1, body);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().message, "record of kind 2: member kind is not a known word: \"procession\"");
  EXPECT_FALSE(decode_record(static_cast<RecordKind>(99), 1, "{}"));
  EXPECT_FALSE(decode_record(RecordKind::attempt, 1, encode_record(Attempt{})));
}

// Every prefix of a body is refused, none crashes.
TEST(Record, TornBodiesAreRefused) {
  for (const auto& record : samples()) {
    const auto body = encode_record(record);
    for (std::size_t size = 0; size < body.size(); ++size) {
      EXPECT_FALSE(decode_record(kind_of(record), kRecordVersion, std::string_view(body).substr(0, size)));
    }
  }
}

}  // namespace
}  // namespace muster::wire
