#include "runner/work.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "runner/transfer/fake_objects.h"

namespace muster::runner {
namespace {

domain::Output continuous(const std::string& name, const std::string& bucket) {
  return {.name = name,
          .local_path = "/opt/ml/" + name,
          .s3_uri = "s3://" + bucket + "/" + name,
          .form = domain::Output::Form::raw,
          .continuous = true};
}

TEST(Work, AnErrorOfAContinuousOutputIsSaidOnceUntilThatOutputWorksAgain) {
  const TempDir folder;
  FakeObjects store;  // has bucket "b" only
  std::vector<std::string> log;
  WorkContext context;
  context.opt_ml = folder / "ml";
  context.names_resolve = false;
  context.log = [&](const std::string& line) { log.push_back(line); };
  context.launch.workload.outputs = {continuous("bad", "nowhere"), continuous("good", "b")};
  Work work(std::move(context), store);
  const auto prepared = work.prepare({});
  ASSERT_TRUE(prepared) << prepared.error().reason;
  const auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_TRUE(make_directories(folder / "ml/" + name));
    ASSERT_TRUE(write_file_atomic(folder / "ml/" + name + "/x", text));
  };
  write("bad", "1");
  write("good", "1");
  for (int i = 0; i < 5; ++i) work.scan({});
  EXPECT_EQ(store.objects["good/x"], "1");
  ASSERT_EQ(log.size(), 1U);
  EXPECT_NE(log[0].find("no bucket nowhere"), std::string::npos) << log[0];

  for (std::size_t times = 1; times <= 2; ++times) {
    store.broken = Error{ErrorCode::permission_denied, "denied"};
    write("good", std::string(times + 1, '2'));
    for (int i = 0; i < 5; ++i) work.scan({});
    EXPECT_EQ(log.size(), 3 * times);  // one more of each
    store.broken.reset();
    for (int i = 0; i < 5; ++i) work.scan({});
    EXPECT_EQ(log.size(), 3 * times + 1);  // "bad" has its first error again
  }
}

// What one cannot keep, the others do; the first reason counts and the log has the rest.
TEST(Work, AFailedCheckpointCopyCostsNoOutput) {
  const TempDir folder;
  FakeObjects store;  // has bucket "b" only
  std::vector<std::string> log;
  WorkContext context;
  context.opt_ml = folder / "ml";
  context.names_resolve = false;
  context.log = [&](const std::string& line) { log.push_back(line); };
  auto& workload = context.launch.workload;
  workload.checkpoint.s3_uri = "s3://b/ck";
  for (const auto* name : {"first", "second", "third"}) {
    const std::string bucket = name == std::string("second") ? "nowhere" : "b";
    workload.outputs.push_back(continuous(name, bucket));
    workload.outputs.back().continuous = false;
  }
  const auto checkpoints = folder / "ml" + workload.checkpoint.local_path.substr(7);
  Work work(std::move(context), store);
  const auto prepared = work.prepare({});
  ASSERT_TRUE(prepared) << prepared.error().reason;
  for (const auto* name : {"first", "second", "third"}) {
    ASSERT_TRUE(make_directories(folder / "ml/" + name));
    ASSERT_TRUE(write_file_atomic(folder / "ml/" + name + "/x", name));
  }
  ASSERT_TRUE(make_directories(checkpoints));
  ASSERT_TRUE(write_file_atomic(checkpoints + "/step", "1"));
  store.refused = "ck/step";
  const auto done = work.finish({});
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().reason.find("ck/step is refused"), std::string::npos) << done.error().reason;
  EXPECT_EQ(store.objects["first/x"], "first");
  EXPECT_EQ(store.objects["third/x"], "third");
  ASSERT_EQ(log.size(), 1U);
  EXPECT_NE(log[0].find("no bucket nowhere"), std::string::npos) << log[0];
}

}  // namespace
}  // namespace muster::runner
