#include "train/ckpt/gathered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "train/ckpt/test_content.h"
#include "train/comm/test_ranks.h"

namespace muster::train {
namespace {

namespace fs = std::filesystem;

// The outcome of each rank, which has folder/R to itself.
std::vector<Result<void>> gather(const std::string& folder, const Content& content, int size,
                                 std::uint64_t round_bytes) {
  return on_ranks(size, [&](Comm& comm) {
    const int rank = comm.rank();
    const auto outcome = save_gathered(folder + "/" + std::to_string(rank), content.info(),
                                       content.slices(rank, size), rank, comm, round_bytes);
    static_cast<void>(comm.barrier());
    return outcome;
  });
}

// Pieces of all sizes against slices of all sizes, empty ones among them.
TEST(Gathered, IsWholeInTheFolderOfRankZeroAlone) {
  const Content content(7, {1, 1000, 3, 0, 70'001, 2});
  for (const std::uint64_t round_bytes : {std::uint64_t{40'000}, std::uint64_t{5'001}, kRoundBytes}) {
    for (const int size : {1, 3, 5}) {
      const TempDir folder;
      for (const auto& outcome : gather(folder.path(), content, size, round_bytes))
        ASSERT_TRUE(outcome) << outcome.error().message;
      EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
      auto reader = Reader::open(step_folder(folder / "0", 7));
      ASSERT_TRUE(reader) << reader.error().message;
      EXPECT_EQ(reader->files(), size);
      EXPECT_EQ(difference(*reader, content), "");
      EXPECT_TRUE(reader->verify());
    }
  }
}

TEST(Gathered, WhatKeepsRankZeroFromWritingEndsAll) {
  const Content content(7, {1000});
  const TempDir folder;
  ASSERT_TRUE(make_directories(folder / "0/step-7/rank-2.bin"));  // no file can have this name
  for (const auto& outcome : gather(folder.path(), content, 3, 5'000)) {
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, testing::HasSubstr("0/step-7/rank-2.bin"));
  }
  EXPECT_FALSE(fs::exists(folder / "0/step-7/manifest.json"));
}

TEST(Gathered, AFullDiskLeavesNothingAndSaysWhatIsNeeded) {
  const Content content(7, {600'000});
  const TempDir folder;
  ASSERT_TRUE(make_directories(folder / "0/step-7"));
  fs::create_symlink("/dev/full", folder / "0/step-7/rank-2.bin");
  for (const auto& outcome : gather(folder.path(), content, 3, 5'000)) {
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message,
                testing::HasSubstr("rank-2.bin: write: No space left on device: 2.3 MiB are needed"));
  }
  EXPECT_FALSE(fs::exists(folder / "0/step-7"));
}

}  // namespace
}  // namespace muster::train
