#include "wire/runner/messages.h"

#include <gtest/gtest.h>

namespace muster::wire {
namespace {

using domain::NodeLaunch;
using domain::RankReport;

NodeLaunch full_launch() {
  NodeLaunch launch;
  launch.id = {domain::AttemptId{12}, 1, 3};
  launch.world = 2;
  launch.node = "node-2";
  launch.attempt_created = Time{1'790'000'000'123};
  auto& work = launch.workload;
  work.kind = domain::JobKind::processing;
  work.job_name = "demo";
  work.job_arn = "arn:aws:sagemaker:us-east-1:000000000000:processing-job/demo";
  work.region = "us-east-1";
  work.role_arn = "arn:aws:iam::000000000000:role/r";
  work.image = "muster/data";
  work.program = "data";
  work.entrypoint = {"/bin/bash", "-c"};
  work.arguments = {"echo \"a\"\n", ""};
  work.environment = {{"A", "1"}, {"Ü", "täglich"}};
  work.hyperparameters = {{"epochs", "3"}};
  work.instance_type = "ml.m5.large";
  work.channels.push_back({.name = "train",
                           .s3_uri = "s3://b/p",
                           .distribution = domain::Distribution::sharded_by_s3_key,
                           .local_path = "/opt/ml/input/data/train",
                           .content_type = "text/plain",
                           .record_wrapper = "RecordIO"});
  work.outputs.push_back({.name = "model",
                          .local_path = "/opt/ml/model",
                          .s3_uri = "s3://b/o/model.tar.gz",
                          .form = domain::Output::Form::tar_gz,
                          .merged = true,
                          .continuous = true});
  work.checkpoint = {.s3_uri = "s3://b/c", .local_path = "/opt/ml/ck"};
  work.files = {{"/opt/ml/config/processingjobconfig.json", "{}"}};
  work.max_runtime = Millis{5'000};
  work.grace = Millis{7};
  launch.endpoint_url = "http://127.0.0.1:4566";
  launch.credentials_uri = "http://127.77.0.2:4567/credentials";
  launch.address = "127.77.0.2";
  launch.interface = "lo";
  launch.hosts = {{"algo-1", "127.77.0.1"}, {"algo-2", "127.77.0.2"}};
  launch.notice = "no memory limit";
  return launch;
}

TEST(Messages, node_launch_round_trip_keeps_every_member) {
  const auto text = encode(full_launch());
  const auto back = decode_node_launch(text);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(encode(*back), text);
  EXPECT_EQ(back->id, full_launch().id);
  EXPECT_EQ(back->hosts.at(1).address, "127.77.0.2");
  const auto& work = back->workload;
  EXPECT_EQ(work.kind, domain::JobKind::processing);
  EXPECT_EQ(work.environment.at("Ü"), "täglich");
  EXPECT_EQ(work.arguments, (std::vector<std::string>{"echo \"a\"\n", ""}));
  EXPECT_EQ(work.channels.at(0).distribution, domain::Distribution::sharded_by_s3_key);
  EXPECT_EQ(work.channels.at(0).record_wrapper, "RecordIO");
  EXPECT_EQ(work.outputs.at(0).form, domain::Output::Form::tar_gz);
  EXPECT_TRUE(work.outputs.at(0).merged);
  EXPECT_TRUE(work.outputs.at(0).continuous);
  EXPECT_EQ(work.checkpoint.local_path, "/opt/ml/ck");
  EXPECT_EQ(work.max_runtime, Millis{5'000});
  EXPECT_EQ(work.grace, Millis{7});
  EXPECT_EQ(work.files.size(), 1U);
}

TEST(Messages, workload_round_trip_of_defaults) {
  const auto text = encode(domain::Workload{});
  const auto back = decode_workload(text);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(encode(*back), text);
}

TEST(Messages, report_round_trip) {
  RankReport report{.launch = {domain::AttemptId{7}, 0, 1},
                    .number = 4,
                    .phase = domain::RankPhase::exited,
                    .message = "exit code 3",
                    .exit = domain::RankExit{.exit_code = 3, .reason = "exit code 3: no", .message = "bye"}};
  auto back = decode_report(encode(report));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->number, 4U);
  EXPECT_EQ(back->exit->exit_code, 3);
  EXPECT_EQ(back->exit->reason, "exit code 3: no");
  EXPECT_EQ(back->exit->message, "bye");
  report.exit.emplace();
  report.exit->signal = 9;
  report.exit->cause = domain::Cause::limit;
  back = decode_report(encode(report));
  ASSERT_TRUE(back);
  EXPECT_FALSE(back->exit->exit_code);
  EXPECT_EQ(back->exit->signal, 9);
  EXPECT_EQ(back->exit->cause, domain::Cause::limit);
  report.exit.reset();
  report.message = "bad \xff byte";
  back = decode_report(encode(report));
  ASSERT_TRUE(back);
  EXPECT_FALSE(back->exit);
  EXPECT_EQ(back->message, "bad \xEF\xBF\xBD byte");
}

TEST(Messages, desired_round_trip) {
  const domain::Desired desired{.target = domain::Target::upload,
                                .stop = true,
                                .stop_cause = domain::Cause::limit,
                                .grace = Millis{30'000},
                                .version = 9};
  const auto back = decode_desired(encode(desired));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, desired);
}

TEST(Messages, log_batch_keeps_any_bytes) {
  LogBatch batch;
  batch.first_sequence = 41;
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  batch.lines = {{Time{1}, "plain"},
                 {Time{2}, ""},
                 {Time{2}, bytes},
                 {Time{3}, "täglich\t\"x\"\\"},
                 {Time{4}, std::string("a\0b", 3)}};
  const auto back = decode_log_batch(encode(batch));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->first_sequence, 41U);
  ASSERT_EQ(back->lines.size(), batch.lines.size());
  for (std::size_t i = 0; i < batch.lines.size(); ++i) {
    EXPECT_EQ(back->lines[i].time, batch.lines[i].time);
    EXPECT_EQ(back->lines[i].text, batch.lines[i].text);
  }
}

TEST(Messages, unknown_members_are_ignored) {
  EXPECT_TRUE(decode_desired(
      R"({"target":"run","stop":false,"stop_cause":"user","grace_ms":1,"version":2,"x":{"y":[1]}})"));
}

struct Bad {
  const char* text;
  const char* message;
};

TEST(Messages, errors_name_the_member) {
  const Bad desired[] = {
      {"", "malformed JSON"},
      {"[]", "expected a JSON object"},
      {R"({"stop":false,"stop_cause":"user","grace_ms":1,"version":2})",
       "desired state: member target is missing"},
      {R"({"target":"fly","stop":false,"stop_cause":"user","grace_ms":1,"version":2})",
       "member target is not a known word: \"fly\""},
      {R"({"target":"run","stop":1,"stop_cause":"user","grace_ms":1,"version":2})",
       "member stop must be true or false, not 1"},
      {R"({"target":"run","stop":true,"stop_cause":"user","grace_ms":-1,"version":2})",
       "member grace_ms is -1, allowed are 0"},
      {R"({"target":"run","stop":true,"stop_cause":"user","grace_ms":1,"version":"2"})",
       "member version must be an integer, not \"2\""},
  };
  for (const auto& bad : desired) {
    const auto result = decode_desired(bad.text);
    ASSERT_FALSE(result) << bad.text;
    EXPECT_NE(result.error().message.find(bad.message), std::string::npos) << result.error().message;
  }
  const Bad reports[] = {
      {R"({"launch":"r0","number":1,"phase":"ready"})",
       "member launch is not a launch id such as a12-r0-i1: \"r0\""},
      {R"({"launch":"a1-r0-i1","number":0,"phase":"ready"})", "member number is 0, allowed are 1"},
      {R"({"launch":"a1-r0-i1","number":1,"phase":"lost"})",
       "member phase is never reported by a runner: \"lost\""},
      {R"({"launch":"a1-r0-i1","number":1,"phase":"exited","exit":5})",
       "member exit must be an object, not 5"},
      {R"({"launch":"a1-r0-i1","number":1,"phase":"exited","exit":{"signal":99,"cause":"user"}})",
       "member exit.signal is 99, allowed are 0 to 64"},
  };
  for (const auto& bad : reports) {
    const auto result = decode_report(bad.text);
    ASSERT_FALSE(result) << bad.text;
    EXPECT_NE(result.error().message.find(bad.message), std::string::npos) << result.error().message;
  }
  const Bad batches[] = {
      {R"({"first_sequence":-1,"lines":[]})", "member first_sequence is -1"},
      {R"({"first_sequence":1})", "member lines must be a list"},
      {R"({"first_sequence":1,"lines":[[1,"a"],[2]]})", "line 1 must be [time ms, text]"},
      {R"({"first_sequence":1,"lines":[[1,null,"%%"]]})", "line 0 is not base64"},
      {R"({"first_sequence":1,"lines":[["1","a"]]})", "line 0 must be"},
  };
  for (const auto& bad : batches) {
    const auto result = decode_log_batch(bad.text);
    ASSERT_FALSE(result) << bad.text;
    EXPECT_NE(result.error().message.find(bad.message), std::string::npos) << result.error().message;
  }
}

TEST(Messages, launch_errors_name_the_path) {
  auto text = encode(full_launch());
  const auto replace = [&](std::string_view from, std::string_view to) {
    auto changed = text;
    const auto at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    const auto result = decode_node_launch(changed);
    return result ? std::string("no error") : result.error().message;
  };
  EXPECT_EQ(replace("\"s3://b/p\"", "5"),
            "launch file: member workload.channels[0].s3_uri must be a string, not 5");
  EXPECT_EQ(replace("\"sharded_by_s3_key\"", "\"x\""),
            "launch file: member workload.channels[0].distribution is not a known word: \"x\"");
  EXPECT_EQ(replace("\"A\":\"1\"", "\"A\":1"),
            "launch file: member workload.environment.A must be a string, not 1");
  EXPECT_EQ(replace("\"world\":2", "\"world\":1"), "launch file: member id has rank 1 in a world of 1");
  EXPECT_EQ(replace("\"a12-r1-i3\"", "\"a12\""),
            "launch file: member id is not a launch id such as a12-r0-i1: \"a12\"");
}

}  // namespace
}  // namespace muster::wire
