#include "train/ckpt/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "train/ckpt/lock.h"
#include "train/ckpt/test_content.h"

namespace muster::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Convert, CutsAnewWithTheSameBytes) {
  const TempDir folder;
  const Content content(7, {3, 4'500'000, 0, 17});  // more than one piece
  save_whole(folder.path(), content, 3);
  std::string before = folder.path();
  for (const int ranks : {1, 5, 2}) {  // A -> B -> C
    auto from = Reader::open(step_folder(before, 7));
    ASSERT_TRUE(from) << from.error().message;
    const std::string to = folder / std::to_string(ranks);
    std::uint64_t done = 0, total = 0;
    const auto converted = convert_checkpoint(
        *from, to,
        {.ranks = ranks, .progress = [&](std::uint64_t d, std::uint64_t t) { done = d, total = t; }});
    ASSERT_TRUE(converted) << converted.error().message;
    EXPECT_EQ(done, total);
    EXPECT_EQ(total, (3 + 4'500'000 + 17) * 4u);
    auto reader = Reader::open(step_folder(to, 7));
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader->files(), ranks);
    EXPECT_EQ(difference(*reader, content), "");
    EXPECT_EQ(reader->info().samples, content.info().samples);
    EXPECT_EQ(json::dump(reader->info().config), json::dump(content.info().config));
    EXPECT_THAT(convert_checkpoint(*reader, to, {}).error().message,
                HasSubstr(step_folder(to, 7) + " is there already"));
    before = to;
  }
}

TEST(Convert, WithoutTheOptimizerAndNothingOfADamagedOne) {
  const TempDir folder;
  Content content(7, {900, 1'500'000, 30});
  content.tensors[1].name = "optimizer.first_moment.layer.0.weight";
  save_whole(folder.path(), content, 2);
  auto reader = Reader::open(step_folder(folder.path(), 7));
  ASSERT_TRUE(reader);
  ASSERT_TRUE(convert_checkpoint(*reader, folder / "weights", {.weights_only = true}));
  const auto weights = Reader::open(step_folder(folder / "weights", 7));
  ASSERT_TRUE(weights) << weights.error().message;
  ASSERT_EQ(weights->info().tensors.size(), 2u);
  EXPECT_EQ(weights->info().tensors[1].name, "layer.2.weight");
  EXPECT_LT(weights->bytes(), 10'000u);

  flip(step_folder(folder.path(), 7) + "/rank-1.bin", 2'900'000);
  EXPECT_THAT(convert_checkpoint(*reader, folder / "hurt", {}).error().message,
              HasSubstr("step-7/rank-1.bin: block 0"));
  EXPECT_FALSE(fs::exists(folder / "hurt"));
}

TEST(Convert, WritesNothingIntoAStep) {
  const TempDir folder;
  save_whole(folder.path(), Content(7, {3}), 1);
  const std::string step = step_folder(folder.path(), 7);
  auto reader = Reader::open(step);
  ASSERT_TRUE(reader);
  fs::create_directory_symlink(step, folder / "link");
  for (const std::string& to : {step, step + "/", step + "/deep/er", folder / "link", step + "/../step-7"}) {
    const auto refused = convert_checkpoint(*reader, to, {});
    ASSERT_FALSE(refused) << to;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr(to + " is inside of the checkpoint " + step));
  }
  EXPECT_FALSE(fs::exists(step + "/step-7"));
  EXPECT_FALSE(fs::exists(step + "/deep"));
  fs::create_directory(folder / "step-8");  // named like one, but none
  EXPECT_TRUE(convert_checkpoint(*reader, folder / "step-8", {}));
}

TEST(Convert, RefusesTooManyPiecesAndTheFolderOfATraining) {
  const TempDir folder;
  const Content content(7, std::vector<std::int64_t>(300, 2));
  save_whole(folder.path(), content, 1);
  auto reader = Reader::open(step_folder(folder.path(), 7));
  ASSERT_TRUE(reader);
  EXPECT_THAT(convert_checkpoint(*reader, folder / "to", {.ranks = 4096}).error().message,
              HasSubstr("1228800 entries, at most 1048576 are written; up to --ranks 3495 fits"));
  EXPECT_FALSE(fs::exists(folder / "to"));

  ASSERT_TRUE(make_directories(folder / "to"));
  auto held = lock_checkpoints(folder / "to", Millis(0));
  ASSERT_TRUE(held && *held);
  EXPECT_THAT(convert_checkpoint(*reader, folder / "to", {}).error().message,
              HasSubstr("to is in use by process "));
  EXPECT_FALSE(fs::exists(step_folder(folder / "to", 7)));
  held->reset();
  fs::create_directory(step_folder(folder / "to", 7));
  fs::create_symlink("/dev/full", step_folder(folder / "to", 7) + "/rank-1.bin");
  EXPECT_THAT(convert_checkpoint(*reader, folder / "to", {.ranks = 2}).error().message,
              HasSubstr("rank-1.bin: write: No space left on device: 2.3 KiB are needed in all"));
  EXPECT_FALSE(fs::exists(step_folder(folder / "to", 7)));
}

}  // namespace
}  // namespace muster::train
