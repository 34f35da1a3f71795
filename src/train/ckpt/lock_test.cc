#include "train/ckpt/lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "train/ckpt/checkpoint.h"

namespace muster::train {
namespace {

using testing::HasSubstr;

TEST(LockCheckpoints, OneHolderAtATimeAndTheOtherIsToldWho) {
  const TempDir folder;
  auto first = lock_checkpoints(folder.path(), Millis(0));
  ASSERT_TRUE(first && *first);
  const auto second = lock_checkpoints(folder.path(), Millis(0));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::failed_precondition);
  EXPECT_THAT(second.error().message,
              HasSubstr(folder.path() + " is in use by process " + std::to_string(getpid()) + " on "));
  EXPECT_TRUE(list_checkpoints(folder.path(), true));  // who reads takes no lock
  first->reset();
  EXPECT_TRUE(lock_checkpoints(folder.path(), Millis(0)));
}

TEST(LockCheckpoints, WaitsForOneThatIsEnding) {
  const TempDir folder;
  auto first = lock_checkpoints(folder.path(), Millis(0));
  ASSERT_TRUE(first && *first);
  int told = 0;
  const auto second = lock_checkpoints(folder.path(), Millis(60'000), [&](const std::string& by) {
    EXPECT_THAT(by, HasSubstr("process "));
    ++told;
    first->reset();
  });
  EXPECT_TRUE(second && *second);
  EXPECT_EQ(told, 1);
}

TEST(LockCheckpoints, WhatIsInItsWayIsNamed) {
  const TempDir folder;
  std::filesystem::create_directory(folder / kLockName);
  EXPECT_THAT(lock_checkpoints(folder.path(), Millis(0)).error().message, HasSubstr(folder / kLockName));
}

}  // namespace
}  // namespace muster::train
