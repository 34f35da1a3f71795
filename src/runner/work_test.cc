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

// A node's folder, a store that has bucket "b" only, and what the work says.
class WorkTest : public ::testing::Test {
 protected:
  WorkTest() {
    context.opt_ml = folder / "ml";
    context.names_resolve = false;
    context.log = [this](const std::string& line) { log.push_back(line); };
  }
  void write(const std::string& path, const std::string& text) {
    const auto whole = folder / "ml/" + path;
    ASSERT_TRUE(make_directories(whole.substr(0, whole.rfind('/'))));
    ASSERT_TRUE(write_file_atomic(whole, text));
  }

  const TempDir folder;
  FakeObjects store;
  std::vector<std::string> log;
  WorkContext context;
};

TEST_F(WorkTest, AnErrorOfAContinuousOutputIsSaidOnceUntilThatOutputWorksAgain) {
  context.launch.workload.outputs = {continuous("bad", "nowhere"), continuous("good", "b")};
  Work work(std::move(context), store);
  const auto prepared = work.prepare({});
  ASSERT_TRUE(prepared) << prepared.error().reason;
  write("bad/x", "1");
  write("good/x", "1");
  for (int i = 0; i < 5; ++i) work.scan({});
  EXPECT_EQ(store.objects["good/x"], "1");
  ASSERT_EQ(log.size(), 1U);
  EXPECT_NE(log[0].find("no bucket nowhere"), std::string::npos) << log[0];

  for (std::size_t times = 1; times <= 2; ++times) {
    store.broken = Error{ErrorCode::permission_denied, "denied"};
    write("good/x", std::string(times + 1, '2'));
    for (int i = 0; i < 5; ++i) work.scan({});
    EXPECT_EQ(log.size(), 3 * times);  // one more of each
    store.broken.reset();
    for (int i = 0; i < 5; ++i) work.scan({});
    EXPECT_EQ(log.size(), 3 * times + 1);  // "bad" has its first error again
  }
}

// What one cannot keep, the others do; the first reason counts and the log has the rest.
TEST_F(WorkTest, AFailedCheckpointCopyCostsNoOutput) {
  auto& workload = context.launch.workload;
  workload.checkpoint.s3_uri = "s3://b/ck";
  for (const auto* name : {"first", "second", "third"}) {
    const std::string bucket = name == std::string("second") ? "nowhere" : "b";
    workload.outputs.push_back(continuous(name, bucket));
    workload.outputs.back().continuous = false;
  }
  const auto checkpoint =
      workload.checkpoint.local_path.substr(std::string_view("/opt/ml/").size()) + "/step";
  Work work(std::move(context), store);
  const auto prepared = work.prepare({});
  ASSERT_TRUE(prepared) << prepared.error().reason;
  for (const std::string name : {"first", "second", "third"}) write(name + "/x", name);
  write(checkpoint, "1");
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
