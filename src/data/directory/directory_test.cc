#include "data/directory/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::data {
namespace {

using ::testing::HasSubstr;

TEST(DataDirectory, IsMadePrivateAndReopened) {
  const TempDir dir;
  const auto made = DataDirectory::open_or_create(dir / "data").value();
  struct stat info {};
  ASSERT_EQ(::stat(made.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  EXPECT_EQ(made.endpoint(), std::nullopt);
  ASSERT_TRUE(made.write_endpoint("http://127.0.0.1:9650"));
  EXPECT_EQ(made.region(), std::nullopt);
  ASSERT_TRUE(made.write_region("eu-central-1"));
  ASSERT_TRUE(made.write_root_key({"AK", "secret"}));
  ASSERT_TRUE(made.write_pid(42));
  const auto again = DataDirectory::open(dir / "data").value();
  EXPECT_EQ(again.endpoint(), "http://127.0.0.1:9650");
  EXPECT_EQ(again.region(), "eu-central-1");
  EXPECT_EQ(again.root_key()->secret_key, "secret");
  EXPECT_EQ(again.pid(), 42);
  ASSERT_EQ(::stat((made.keys() + "/root.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(DataDirectory, RefusalsSayWhatToDo) {
  const TempDir dir;
  EXPECT_THAT(DataDirectory::open(dir / "none").error().message, HasSubstr("muster up --data"));
  ASSERT_TRUE(write_file_atomic(dir / "file", ""));
  EXPECT_THAT(DataDirectory::open_or_create(dir / "file").error().message,
              HasSubstr("choose one with --data"));
  ASSERT_TRUE(DataDirectory::open_or_create(dir / "new"));
  ASSERT_TRUE(write_file_atomic(dir / "new/FORMAT", "2\n"));
  EXPECT_THAT(DataDirectory::open(dir / "new").error().message, HasSubstr("layout 2"));
}

TEST(DataDirectory, OneServesIt) {
  const TempDir dir;
  const auto data = DataDirectory::open_or_create(dir / "data").value();
  ASSERT_TRUE(data.write_pid(42));
  const auto lock = data.lock();
  ASSERT_TRUE(lock);
  EXPECT_THAT(data.lock().error().message, HasSubstr("another musterd (process 42)"));
}

}  // namespace
}  // namespace muster::data
