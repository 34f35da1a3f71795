#include "data/directory/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace muster::data {
namespace {

using ::testing::AllOf;
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

// The inode tells: a start on a full disk can neither make a file nor lengthen one.
TEST(DataDirectory, WhatIsAsItWasIsNotWrittenAnew) {
  const TempDir dir;
  const auto data = DataDirectory::open_or_create(dir / "data").value();
  const auto inode = [&](const std::string& name) {
    struct stat info {};
    EXPECT_EQ(::stat((data.path() + name).c_str(), &info), 0);
    return std::pair(info.st_ino, info.st_size);
  };
  const auto start = [&](int pid) {
    ASSERT_TRUE(data.write_endpoint("http://127.0.0.1:9650"));
    ASSERT_TRUE(data.write_region("us-east-1"));
    ASSERT_TRUE(data.write_pid(pid));
    EXPECT_EQ(data.pid(), pid);
  };
  start(4'194'304);
  const std::vector before = {inode("/endpoint"), inode("/region"), inode("/musterd.pid")};
  start(7);
  const std::vector after = {inode("/endpoint"), inode("/region"), inode("/musterd.pid")};
  EXPECT_EQ(after, before);
  ASSERT_TRUE(data.write_region("eu-central-1"));
  EXPECT_EQ(data.region(), "eu-central-1");
}

TEST(DataDirectory, RefusalsSayWhatToDo) {
  const TempDir dir;
  EXPECT_THAT(DataDirectory::open(dir / "none").error().message, HasSubstr("muster up --detach --data"));
  ASSERT_TRUE(write_file_atomic(dir / "file", ""));
  EXPECT_THAT(DataDirectory::open_or_create(dir / "file").error().message,
              HasSubstr("choose one with --data"));
  ASSERT_TRUE(DataDirectory::open_or_create(dir / "new"));
  ASSERT_TRUE(write_file_atomic(dir / "new/FORMAT", "2\n"));
  EXPECT_THAT(DataDirectory::open(dir / "new").error().message, HasSubstr("layout 2"));
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

TEST(DataDirectory, AFolderOfSomethingElseIsRefusedAndLeftAsItIs) {
  const TempDir dir;
  const auto folder = dir / "etc";
  ASSERT_TRUE(make_directories(folder + "/keys"));
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  const auto refused = DataDirectory::open_or_create(folder);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr(folder), HasSubstr("not empty: it has keys; give a new or an empty folder")));
  EXPECT_EQ(mode_of(folder), 0755U);
  EXPECT_FALSE(std::filesystem::exists(folder + "/FORMAT"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/state"));
}

TEST(DataDirectory, AnEmptyFolderIsTakenAndMadePrivate) {
  const TempDir dir;
  const auto folder = dir / "made";
  ASSERT_TRUE(make_directories(folder));
  ASSERT_EQ(::chmod(folder.c_str(), 0775), 0);
  ASSERT_TRUE(write_file_atomic(folder + "/muster.toml", ""));
  ASSERT_TRUE(write_file_atomic(folder + "/FORMAT.tmp-77", ""));  // of a start that was killed
  const auto taken = DataDirectory::open_or_create(folder);
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_EQ(mode_of(folder), 0700U);
  EXPECT_EQ(mode_of(taken->keys()), 0700U);
  EXPECT_TRUE(DataDirectory::open_or_create(folder));
}

TEST(DataDirectory, WhereOthersMayWriteOrReadKeysItIsRefused) {
  const TempDir dir;
  ASSERT_TRUE(make_directories(dir / "tmp"));
  ASSERT_EQ(::chmod((dir / "tmp").c_str(), 01777), 0);
  EXPECT_THAT(DataDirectory::open_or_create(dir / "tmp").error().message,
              HasSubstr("everybody may write to it"));
  EXPECT_EQ(mode_of(dir / "tmp"), 01777U);
  ASSERT_TRUE(DataDirectory::open_or_create(dir / "data"));
  ASSERT_EQ(::chmod((dir / "data/keys").c_str(), 0755), 0);
  EXPECT_THAT(DataDirectory::open_or_create(dir / "data").error().message, HasSubstr("chmod 700 "));
}

TEST(DataDirectory, OfAnotherUserItIsSaidSo) {
  const TempDir dir;
  ASSERT_TRUE(DataDirectory::open_or_create(dir / "data"));
  const auto me = ::geteuid();
  ASSERT_EQ(::chmod((dir / "data").c_str(), me == 0 ? 0700 : 0), 0);
  ASSERT_EQ(::seteuid(me == 0 ? 65534 : me), 0);
  const auto opened = DataDirectory::open(dir / "data");
  const auto created = DataDirectory::open_or_create(dir / "data");
  ASSERT_EQ(::seteuid(me), 0);
  ::chmod((dir / "data").c_str(), 0700);
  for (const auto* refused : {&opened, &created}) {
    ASSERT_FALSE(*refused);
    EXPECT_EQ(refused->error().code, ErrorCode::permission_denied);
    EXPECT_THAT(refused->error().message, AllOf(HasSubstr(dir / "data"), HasSubstr("Permission denied")));
  }
}

TEST(DataDirectory, WhatWasLostSinceTheFirstStartIsNamed) {
  const TempDir dir;
  const auto data = DataDirectory::open_or_create(dir / "data").value();
  EXPECT_TRUE(data.check_complete()) << "a first start makes them";
  const auto parts = {data.master_key(), data.keys() + "/root.json", data.state() + "/state.db",
                      data.objects() + "/metadata.sqlite"};
  for (const auto& part : parts) ASSERT_TRUE(write_file_atomic(part, "x"));
  ASSERT_TRUE(data.write_created());
  ASSERT_TRUE(data.write_created());
  EXPECT_TRUE(data.check_complete());
  for (const auto& part : parts) {
    const auto name = part.substr(data.path().size() + 1);
    ASSERT_TRUE(write_file_atomic(part, ""));
    EXPECT_THAT(data.check_complete().error().message, HasSubstr("has lost " + name)) << "emptied";
    ASSERT_EQ(::unlink(part.c_str()), 0);
    EXPECT_THAT(data.check_complete().error().message, HasSubstr("has lost " + name)) << "missing";
    ASSERT_TRUE(write_file_atomic(part, "x"));
  }
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
