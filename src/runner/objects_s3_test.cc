// The adapter over data/s3 against a server that checks every signature.
#include "runner/objects_s3.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <thread>

#include "base/file.h"
#include "data/s3/testing.h"
#include "runner/transfer/stage.h"
#include "runner/transfer/upload.h"

namespace muster::runner {
namespace {

namespace s3 = data::s3::testing;

// Hands out the credentials that the fake server knows.
class CredentialsLink final : public ControlLink {
 public:
  Result<domain::ReportAnswer> report(const domain::RankReport&) override {
    return fail(ErrorCode::unsupported, "");
  }
  Result<domain::Desired> desired(std::uint64_t) override { return fail(ErrorCode::unsupported, ""); }
  Result<std::uint64_t> logs(const wire::LogBatch&) override { return fail(ErrorCode::unsupported, ""); }
  Result<std::string> credentials() override {
    ++asked;
    if (on_ask) on_ask();
    return std::string(R"({"AccessKeyId":")") + s3::kAccessKey + R"(","SecretAccessKey":")" + s3::kSecretKey +
           R"(","Token":"","Expiration":")" + expiration + R"("})";
  }
  void cancel() override {}
  int asked = 0;
  std::string expiration = "2099-01-01T00:00:00Z";
  std::function<void()> on_ask;
};

class ObjectsS3 : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = s3_objects("http://127.0.0.1:" + std::to_string(server_.port()), "us-east-1", credentials_);
    ASSERT_TRUE(made) << made.error().message;
    objects_ = *std::move(made);
  }
  s3::FakeS3 server_;
  CredentialsLink link_;
  SystemClock clock_;
  CredentialsCache credentials_{link_, clock_};
  std::unique_ptr<Objects> objects_;
  TempDir folder_;
};

TEST_F(ObjectsS3, stages_a_channel_and_uploads_an_output) {
  const std::string big(40'000'000, 'b');  // several ranges
  server_.put("in/d/big", big);
  server_.put("in/small", "s");
  server_.put("in/empty", "");
  const auto staged =
      stage_channel(*objects_, {.name = "train", .s3_uri = "s3://bucket/in"}, 0, 1, folder_ / "data", {});
  ASSERT_TRUE(staged) << staged.error().message;
  EXPECT_EQ(staged->files, 3U);
  EXPECT_EQ(read_file(folder_ / "data/d/big").value(), big);
  EXPECT_EQ(read_file(folder_ / "data/small").value(), "s");
  UploadContext context;
  context.opt_ml = folder_.path();
  context.scratch = folder_.path();
  context.log = [](const std::string& line) { ADD_FAILURE() << line; };
  const auto sent = upload_output(
      *objects_, {.name = "o", .local_path = "/opt/ml/data", .s3_uri = "s3://bucket/out"}, context, {});
  ASSERT_TRUE(sent) << sent.error().message;
  const auto there = objects_->list({"bucket", "out/"});
  ASSERT_TRUE(there);
  EXPECT_EQ(there->size(), 3U);
  EXPECT_TRUE(objects_->remove({"bucket", "out/small"}));
  EXPECT_EQ(objects_->list({"bucket", "out/"})->size(), 2U);
  EXPECT_EQ(link_.asked, 1);
}

TEST_F(ObjectsS3, nothing_there_and_a_stop) {
  const auto staged =
      stage_channel(*objects_, {.name = "train", .s3_uri = "s3://bucket/none"}, 0, 1, folder_ / "data", {});
  ASSERT_FALSE(staged);
  EXPECT_NE(staged.error().message.find("channel \"train\": "), std::string::npos) << staged.error().message;
  server_.put("in/a", "a");
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(stage_channel(*objects_, {.name = "train", .s3_uri = "s3://bucket/in"}, 0, 1, folder_ / "data",
                             stop.get_token()));
}

TEST_F(ObjectsS3, a_store_that_restarts_is_waited_for) {
  for (const auto* key : {"in/a", "in/b", "in/c"}) server_.put(key, key);
  server_.stop();
  // It refuses connections, then answers as a service that starts, then serves. With credentials that do not
  // last each attempt asks for new ones: at the second question the first attempt has been refused.
  link_.expiration = "1999-01-01T00:00:00Z";
  link_.on_ask = [&] {
    if (link_.asked == 2) server_.start(server_.port());
  };
  server_.fault = [starting = std::make_shared<std::atomic<int>>(3)](const net::Request&) {
    std::optional<net::Response> out;
    if ((*starting)-- > 0) out.emplace().status = 503;
    return out;
  };
  const auto staged =
      stage_channel(*objects_, {.name = "train", .s3_uri = "s3://bucket/in"}, 0, 1, folder_ / "data", {});
  ASSERT_TRUE(staged) << staged.error().message;
  EXPECT_EQ(staged->files, 3U);
  EXPECT_GE(link_.asked, 5);  // refused, three times 503, and then what was asked for
}

// A store that takes the request and never answers: what a stop ends, and how. The runner does not wait for a
// listing that was given up, but ends it on its way out.
TEST_F(ObjectsS3, a_listing_that_is_never_answered_ends_with_cancel) {
  std::promise<void> asked;
  std::promise<void> end;
  server_.fault = [&, ended = end.get_future().share()](const net::Request&) -> std::optional<net::Response> {
    asked.set_value();
    ended.wait();
    return s3::answer(503);
  };
  std::jthread leave([&] {
    asked.get_future().wait();
    objects_->cancel();
  });
  const auto staged =
      stage_channel(*objects_, {.name = "train", .s3_uri = "s3://bucket/in"}, 0, 1, folder_ / "data", {});
  ASSERT_FALSE(staged);
  EXPECT_EQ(staged.error().code, ErrorCode::cancelled) << staged.error().message;
  end.set_value();
}

}  // namespace
}  // namespace muster::runner
