#include "train/ckpt/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "train/agent/process.h"
#include "train/ckpt/manifest.h"
#include "train/ckpt/test_content.h"
#include "train/comm/test_ranks.h"

namespace muster::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

const std::vector<std::int64_t> kSizes = {3, 100'000, 1'200'000, 0, 17};

TEST(Checkpoint, TheFolderOfAStepHasOneSlashBeforeIt) {
  EXPECT_EQ(step_folder("a/ckpt", 6), "a/ckpt/step-6");
  EXPECT_EQ(step_folder("a/ckpt/", 6), "a/ckpt/step-6");
}

TEST(Checkpoint, IsTheSameWhoeverWroteIt) {
  for (int size : {1, 2, 3, 5}) {
    const TempDir folder;
    const Content content(7, kSizes);
    save_whole(folder.path(), content, size);
    auto reader = Reader::open(step_folder(folder.path(), 7));
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader->files(), size);
    EXPECT_EQ(difference(*reader, content), "");
    EXPECT_EQ(reader->info().samples, 56u);
    EXPECT_EQ(reader->info().tokenizer_hash, "abc");
    EXPECT_EQ(reader->info().tensors, content.tensors);
    EXPECT_EQ(json::dump(reader->info().config), json::dump(content.info().config));
    EXPECT_TRUE(
        fs::exists(step_folder(folder.path(), 7) + "/node-" + std::to_string((size - 1) / 2) + ".json"));
  }
}

TEST(Checkpoint, ReadsAnyRange) {
  const TempDir folder;
  const Content content(1, kSizes);
  save_whole(folder.path(), content, 3);
  auto reader = Reader::open(step_folder(folder.path(), 1));
  ASSERT_TRUE(reader);
  Rng rng(5);
  for (int i = 0; i < 200; ++i) {
    const std::size_t t = rng.below(2) + 1, count = content.values[t].size();
    const std::size_t begin = rng.below(count),
                      length = std::min<std::size_t>(rng.below(5000), count - begin);
    std::vector<float> data(length);
    ASSERT_TRUE(reader->read(content.part_of_tensor(t, begin, begin + length),
                             std::as_writable_bytes(std::span(data))));
    ASSERT_TRUE(
        std::equal(data.begin(), data.end(), content.values[t].begin() + static_cast<std::ptrdiff_t>(begin)));
  }
  std::vector<float> data(4);
  EXPECT_THAT(
      reader->read(content.part_of_tensor(0, 0, 4), std::as_writable_bytes(std::span(data))).error().message,
      HasSubstr("layer.0.weight has 3 elements there, [0, 4) were asked for"));
  EXPECT_THAT(reader->read(whole_slice("other", whole_box({0})), {}).error().message,
              HasSubstr("no tensor other"));
}

// Three files of 16 MB, four blocks of 4 MiB each; a reader of a third of one tensor, which the last block of
// the first file and the last three of the second hold.
TEST(Checkpoint, OnlyTheBlocksThatHoldWhatIsAskedForAreRead) {
  const TempDir folder;
  const Content content(1, {6'000'000, 6'000'000});
  save_whole(folder.path(), content, 3);
  auto reader = Reader::open(step_folder(folder.path(), 1));
  ASSERT_TRUE(reader);
  const auto file = [&](int rank) {
    return step_folder(folder.path(), 1) + "/rank-" + std::to_string(rank) + ".bin";
  };
  // Damage elsewhere does not concern it; damage there does.
  for (const auto& [rank, blocks] : {std::pair{0, 3}, {1, 1}, {2, 4}}) {
    for (int block = 0; block < blocks; ++block)
      flip(file(rank), block * static_cast<std::streamoff>(kBlockBytes) + 100);
  }
  const std::size_t begin = 1'900'000, count = 2'000'000;  // 8 MB over the end of one file
  std::vector<float> data(count);
  ASSERT_TRUE(
      reader->read(content.part_of_tensor(1, begin, begin + count), std::as_writable_bytes(std::span(data))));
  EXPECT_TRUE(
      std::equal(data.begin(), data.end(), content.values[1].begin() + static_cast<std::ptrdiff_t>(begin)));
  flip(file(1), 15'000'000);
  EXPECT_THAT(
      reader->read(content.part_of_tensor(1, begin, begin + count), std::as_writable_bytes(std::span(data)))
          .error()
          .message,
      HasSubstr("step-1/rank-1.bin: block 3"));
}

// Written by two ranks as columns, each cut in two shards; read as rows by three.
TEST(Checkpoint, IsReadInAnotherLayout) {
  const std::int64_t rows = 7, columns = 10;
  Content content(3, {rows * columns});
  content.tensors[0].shape = {rows, columns};
  const TempDir folder;
  const auto answers = on_ranks(4, [&](Comm& comm) {
    const auto cut = part_of(columns, comm.rank() / 2, 2);
    const Box box{{0, cut.begin}, {rows, cut.size()}};
    std::vector<float> data;
    for (const auto& run : intersect(whole_slice("layer.0.weight", whole_box({rows, columns})),
                                     whole_slice("layer.0.weight", box))) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        data.push_back(content.values[0][static_cast<std::size_t>(run.a + i)]);
      }
    }
    const auto flat = part_of(box.numel(), comm.rank() % 2, 2);
    const TensorSlice mine{{"layer.0.weight", box, flat},
                           std::as_bytes(std::span(data).subspan(static_cast<std::size_t>(flat.begin),
                                                                 static_cast<std::size_t>(flat.size())))};
    return save_checkpoint(folder.path(), content.info(), {&mine, 1}, {.node = 0, .local_rank = comm.rank()},
                           comm);
  });
  for (const auto& answer : answers) ASSERT_TRUE(answer) << answer.error().message;
  auto reader = Reader::open(step_folder(folder.path(), 3));
  ASSERT_TRUE(reader) << reader.error().message;
  for (int part = 0; part < 3; ++part) {
    const auto range = part_of(rows, part, 3);
    std::vector<float> data(static_cast<std::size_t>(range.size() * columns));
    ASSERT_TRUE(reader->read(whole_slice("layer.0.weight", {{range.begin, 0}, {range.size(), columns}}),
                             std::as_writable_bytes(std::span(data))));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), content.values[0].begin() + range.begin * columns));
  }
}

TEST(Checkpoint, SlicesThatDoNotCoverATensorOnceAreRefused) {
  Content content(3, {24});
  content.tensors[0].shape = {4, 6};
  const auto open = [&](std::vector<Slice> slices) {
    const TempDir folder;
    std::vector<TensorSlice> mine;
    for (auto& slice : slices) {
      const auto bytes =
          std::as_bytes(std::span(content.values[0])).first(static_cast<std::size_t>(slice.numel()) * 4);
      mine.push_back({std::move(slice), bytes});
    }
    Comm alone("world", single_transport());
    EXPECT_TRUE(save_checkpoint(folder.path(), content.info(), mine, {}, alone));
    const auto reader = Reader::open(step_folder(folder.path(), 3));
    return reader ? std::string("ok") : reader.error().message;
  };
  const std::string name = "layer.0.weight";
  const Slice left = whole_slice(name, {{0, 0}, {4, 3}}), right = whole_slice(name, {{0, 3}, {4, 3}});
  EXPECT_EQ(open({right, left}), "ok");
  EXPECT_THAT(open({left}), HasSubstr("only 12 of 24 elements"));
  EXPECT_THAT(open({left, whole_slice(name, {{0, 2}, {4, 4}})}), HasSubstr("overlap"));
  EXPECT_THAT(open({left, {name, right.box, {0, 5}}, {name, right.box, {6, 12}}}),
              HasSubstr("leave a gap at element 5"));
  EXPECT_THAT(open({left, {name, right.box, {0, 7}}, {name, right.box, {6, 12}}}),
              HasSubstr("overlap or leave a gap at element 7"));
  EXPECT_THAT(open({{name, left.box, {0, 11}}, right}), HasSubstr("leave a gap at element 11"));
}

// A way to damage a finished step, and what is then said of it.
struct Damage {
  const char* name;
  void (*hurt)(const std::string& step);
  const char* says;
};

const Damage kDamages[] = {
    {"truncated", [](const std::string& s) { fs::resize_file(s + "/rank-1.bin", 1000); },
     "rank-1.bin has 1000 bytes, the manifest says"},
    {"longer", [](const std::string& s) { fs::resize_file(s + "/rank-1.bin", 9'000'000); },
     "rank-1.bin has 9000000 bytes"},
    {"missing", [](const std::string& s) { fs::remove(s + "/rank-0.bin"); }, "rank-0.bin is missing"},
    {"bit in the first block", [](const std::string& s) { flip(s + "/rank-0.bin", 12); },
     "rank-0.bin: block 0 (bytes 0 to 4194303) is altered"},
    {"bit in the last block", [](const std::string& s) { flip(s + "/rank-1.bin", 4'194'304); },
     "rank-1.bin: block 1 (bytes 4194304 to "},
    {"bit in the manifest", [](const std::string& s) { flip(s + "/manifest.json", 60); },
     "manifest.json: altered"},
    {"manifest cut", [](const std::string& s) { fs::resize_file(s + "/manifest.json", 200); },
     "manifest.json: not a checkpoint manifest, or cut off after 200 bytes"},
    {"manifest empty", [](const std::string& s) { fs::resize_file(s + "/manifest.json", 0); },
     "cut off after 0 bytes"},
};

TEST(Damaged, EveryKindIsNamedAndTheStepBeforeIsTakenOnlyWhereAsked) {
  for (const Damage& damage : kDamages) {
    const TempDir folder;
    const Content old_content(10, {10}), content(20, {2'400'000});
    save_whole(folder.path(), old_content, 2);
    save_whole(folder.path(), content, 2);
    damage.hurt(step_folder(folder.path(), 20));
    // Found at once, or by the first reader of the bytes; never loaded.
    auto strict = latest_checkpoint(folder.path(), OnDamage::refuse);
    const std::string said = strict ? difference(*strict->reader, content) : strict.error().message;
    EXPECT_THAT(said, HasSubstr(damage.says)) << damage.name;
    auto latest = latest_checkpoint(folder.path(), OnDamage::pass_over);
    ASSERT_TRUE(latest) << damage.name << latest.error().message;
    ASSERT_TRUE(latest->reader) << damage.name;
    EXPECT_EQ(difference(*latest->reader, old_content), "") << damage.name;
    EXPECT_THAT(latest->notices, testing::ElementsAre(HasSubstr(damage.says))) << damage.name;
    const auto entries = list_checkpoints(folder.path(), true);
    ASSERT_TRUE(entries);
    ASSERT_EQ(entries->size(), 2u);
    ASSERT_TRUE(entries->at(0).problem) << damage.name;
    EXPECT_THAT(entries->at(0).problem->message, HasSubstr(damage.says));
    EXPECT_FALSE(entries->at(1).problem);
  }
}

// One random damage to one random file that counts; what it did, or empty if it changed nothing.
std::string hurt_at_random(const std::string& step, const std::string& other_step, Rng& rng) {
  const char* const names[] = {"rank-0.bin", "rank-1.bin", "rank-2.bin", "manifest.json"};
  const std::string name = names[rng.below(4)], path = step + "/" + name;
  const std::string bytes = *read_file(path);
  std::string hurt = bytes, what;
  switch (rng.below(5)) {
    case 0: {
      const std::uint64_t bit = rng.below(bytes.size() * 8);
      hurt[bit / 8] = static_cast<char>(hurt[bit / 8] ^ (1 << bit % 8));
      what = "bit " + std::to_string(bit) + " flipped";
      break;
    }
    case 1:
      hurt.resize(rng.below(bytes.size()));
      what = "cut to " + std::to_string(hurt.size());
      break;
    case 2:
      hurt.append(1 + rng.below(5000), '\0');
      what = "extended to " + std::to_string(hurt.size());
      break;
    case 3: {
      const std::string from = rng.chance(0.5) ? step + "/" + names[rng.below(4)] : other_step + "/" + name;
      hurt = *read_file(from);
      what = "swapped for " + from;
      break;
    }
    default: {
      const std::uint64_t at = rng.below(bytes.size()),
                          count = std::min<std::uint64_t>(512, bytes.size() - at);
      hurt.replace(at, count, std::string(count, '\0'));
      what = "zeros at " + std::to_string(at);
    }
  }
  if (hurt == bytes) return "";
  EXPECT_TRUE(write_file_atomic(path, hurt));
  return name + " of " + std::to_string(bytes.size()) + " bytes: " + what;
}

// Whatever happens to a byte of a finished step: somebody who reads all of it is told, by the file's name.
TEST(Damaged, AtRandomIsNamedAndNeverLoaded) {
  const TempDir folder, pristine;
  const Content old_content(10, {70'000, 900, 5}), content(20, {70'000, 900, 5});
  save_whole(pristine.path(), old_content, 3);
  save_whole(pristine.path(), content, 3);
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  std::cout << "seed " << seed << "\n";
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    fs::remove_all(folder.path());
    fs::copy(pristine.path(), folder.path(), fs::copy_options::recursive);
    const std::string step = step_folder(folder.path(), 20);
    const std::string damage = hurt_at_random(step, step_folder(folder.path(), 10), rng);
    if (damage.empty()) continue;
    auto newest = latest_checkpoint(folder.path(), OnDamage::refuse);
    const std::string said = newest ? difference(*newest->reader, content) : newest.error().message;
    ASSERT_THAT(said, HasSubstr("step-20/" + damage.substr(0, damage.find(' ')))) << damage;
    ASSERT_THAT(said, testing::Not(HasSubstr("other values"))) << damage;
    auto older = latest_checkpoint(folder.path(), OnDamage::pass_over);
    ASSERT_TRUE(older && older->reader) << damage;
    ASSERT_EQ(difference(*older->reader, old_content), "") << damage;
    ASSERT_THAT(older->notices, testing::ElementsAre(HasSubstr("step 20 passed over, it is damaged")))
        << damage;
  }
}

// Earlier programs wrote what rank 0 ran on, alone.
TEST(Checkpoint, TellsOnWhichMachinesItWasMade) {
  const json::Object a{{"cpu", "A"}}, b{{"cpu", "B"}};
  CheckpointInfo info = Content(3, {4}).info();
  info.machines = {a, b};
  auto manifest = parse_manifest(manifest_text(info, {}));
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_THAT(info_of(*manifest)->machines, testing::ElementsAre(a, b));
  manifest->erase("machines");
  (*manifest)["machine"] = b;
  EXPECT_THAT(info_of(*manifest)->machines, testing::ElementsAre(b));
}

TEST(Damaged, AWholeStepUnderAnotherNameIsRefused) {
  const TempDir folder;
  save_whole(folder.path(), Content(10, {100}), 1);
  fs::rename(step_folder(folder.path(), 10), step_folder(folder.path(), 20));
  EXPECT_THAT(Reader::open(step_folder(folder.path(), 20)).error().message,
              HasSubstr("step-20/manifest.json is that of step 10"));
}

TEST(Damaged, WithoutAnotherStepItIsAnErrorNotAFreshStart) {
  const TempDir folder;
  save_whole(folder.path(), Content(20, {100}), 1);
  fs::remove(step_folder(folder.path(), 20) + "/rank-0.bin");
  for (const OnDamage on_damage : {OnDamage::refuse, OnDamage::pass_over}) {
    const auto latest = latest_checkpoint(folder.path(), on_damage);
    ASSERT_FALSE(latest);
    EXPECT_EQ(latest.error().code, ErrorCode::corrupt);
    EXPECT_THAT(latest.error().message, HasSubstr("step-20/rank-0.bin is missing"));
  }
}

TEST(Latest, UnfinishedStepsDoNotCount) {
  const TempDir folder;
  EXPECT_FALSE(latest_checkpoint(folder.path(), OnDamage::refuse)->reader);
  EXPECT_FALSE(latest_checkpoint(folder / "not-there", OnDamage::refuse)->reader);
  save_whole(folder.path(), Content(5, {100}), 1);
  fs::remove(step_folder(folder.path(), 5) + "/manifest.json");
  save_whole(folder.path(), Content(4, {100}), 1);
  auto latest = latest_checkpoint(folder.path(), OnDamage::refuse);
  ASSERT_TRUE(latest) << latest.error().message;
  ASSERT_TRUE(latest->reader);
  EXPECT_EQ(latest->reader->info().step, 4);
  EXPECT_THAT(latest->notices,
              testing::ElementsAre(HasSubstr("step 5 passed over: its save did not finish")));
}

TEST(Save, OverAnUnfinishedOrDamagedStep) {
  const TempDir folder;
  save_whole(folder.path(), Content(5, {1000}), 3);
  fs::remove(step_folder(folder.path(), 5) + "/rank-2.bin");
  const Content content(5, {500, 20});
  save_whole(folder.path(), content, 2);
  auto latest = latest_checkpoint(folder.path(), OnDamage::refuse);
  ASSERT_TRUE(latest && latest->reader);
  EXPECT_EQ(difference(*latest->reader, content), "");
}

TEST(Save, AFailureOfOneRankIsEverybodysError) {
  const TempDir folder;
  const std::string step = step_folder(folder.path(), 5);
  fs::create_directories(step + "/rank-1.bin");  // a folder is in the way
  const auto answers = save(folder.path(), Content(5, {1000}), 2);
  for (const auto& answer : answers) {
    ASSERT_FALSE(answer);
    EXPECT_THAT(answer.error().message, HasSubstr("rank 1: open " + step + "/rank-1.bin"));
  }
  EXPECT_FALSE(fs::exists(step + "/manifest.json"));
}

Result<void> prune(const std::string& folder, const Keep& keep, std::int64_t newest) {
  MUSTER_TRY(const auto kept, kept_checkpoints(folder, keep, newest));
  return remove_checkpoints(folder, kept, newest);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(Prune, KeepsTheNewestAndClearsLeftovers) {
  const TempDir folder;
  for (std::int64_t step : {10, 20, 30, 40}) save_whole(folder.path(), Content(step, {10}), 1);
  fs::remove(step_folder(folder.path(), 20) + "/manifest.json");
  fs::create_directories(folder / "step-50");     // being written
  fs::create_directories(folder / "step-notes");  // not ours
  ASSERT_TRUE(prune(folder.path(), {.last = 2}, 40));
  EXPECT_THAT(names_in(folder.path()),
              testing::UnorderedElementsAre("step-30", "step-40", "step-50", "step-notes"));
}

// A step that is elsewhere, perhaps of another run.
TEST(Prune, OfALinkedStepOnlyTheLinkGoes) {
  const TempDir folder, other;
  for (std::int64_t step : {10, 20}) save_whole(other.path(), Content(step, {10}), 1);
  for (const char* step : {"step-10", "step-20"}) fs::create_directory_symlink(other / step, folder / step);
  save_whole(folder.path(), Content(20, {30}), 1);  // the same step anew
  save_whole(folder.path(), Content(30, {10}), 1);
  const auto pruned = prune(folder.path(), {.last = 2}, 30);
  ASSERT_TRUE(pruned) << pruned.error().message;
  EXPECT_THAT(names_in(folder.path()), testing::UnorderedElementsAre("step-20", "step-30"));
  const auto left = list_checkpoints(other.path(), true);
  ASSERT_TRUE(left);
  ASSERT_EQ(left->size(), 2u);
  for (const StepEntry& entry : *left) EXPECT_TRUE(entry.finished && !entry.problem) << entry.path;
  auto reader = Reader::open(other / "step-20");
  EXPECT_EQ(difference(*reader, Content(20, {10})), "");
}

// It may be the newest one, so it is not passed over.
TEST(Latest, AStepThatMayNotBeReadIsAnError) {
  const TempDir folder;
  for (std::int64_t step : {10, 20}) save_whole(folder.path(), Content(step, {10}), 1);
  Unprivileged::give(folder.path());
  fs::permissions(folder / "step-20", fs::perms::none);
  {
    const Unprivileged nobody;
    for (const auto on_damage : {OnDamage::refuse, OnDamage::pass_over}) {
      const auto latest = latest_checkpoint(folder.path(), on_damage);
      ASSERT_FALSE(latest);
      EXPECT_EQ(latest.error().code, ErrorCode::permission_denied);
      EXPECT_THAT(latest.error().message, HasSubstr("step-20/manifest.json: Permission denied"));
    }
  }
  fs::permissions(folder / "step-20", fs::perms::owner_all);
}

// A model exported into an old step, a file with the name of one: no reason for a training to end.
TEST(Prune, LeavesWhatNoSaveHasWritten) {
  const TempDir folder;
  for (std::int64_t step : {10, 20, 30}) save_whole(folder.path(), Content(step, {10}), 1);
  fs::create_directories(folder / "step-10/hf");
  fs::create_directories(folder / "step-20/rank-7.bin");
  ASSERT_TRUE(write_file_atomic(folder / "step-0", "notes"));
  const auto pruned = prune(folder.path(), {.last = 1}, 30);
  ASSERT_TRUE(pruned) << pruned.error().message;
  EXPECT_THAT(names_in(folder.path()),
              testing::UnorderedElementsAre("step-0", "step-10", "step-20", "step-30"));
  EXPECT_THAT(names_in(folder / "step-10"), testing::ElementsAre("hf"));
  EXPECT_THAT(names_in(folder / "step-20"), testing::ElementsAre("rank-7.bin"));
  EXPECT_TRUE(latest_checkpoint(folder.path(), OnDamage::refuse)->reader);
}

// Something else in the place of a file is damage, as a missing file is.
TEST(Latest, PassesOverWhatIsNoFile) {
  for (const char* name : {"manifest.json", "rank-0.bin"}) {
    for (const bool link : {false, true}) {
      const TempDir folder;
      for (std::int64_t step : {10, 20}) save_whole(folder.path(), Content(step, {10}), 1);
      const std::string path = folder / "step-20/" + name;
      fs::remove(path);
      if (link) {
        fs::create_symlink(path, path);
      } else {
        fs::create_directories(path);
      }
      const auto refused = latest_checkpoint(folder.path(), OnDamage::refuse);
      const auto older = latest_checkpoint(folder.path(), OnDamage::pass_over);
      ASSERT_TRUE(older && older->reader) << older.error().message;
      EXPECT_EQ(older->reader->info().step, 10);
      if (link && name == std::string("manifest.json")) continue;  // as if there were none
      ASSERT_FALSE(refused);
      EXPECT_THAT(refused.error().message, HasSubstr(std::string("step-20/") + name + " is no file"));
    }
  }
}

TEST(Prune, KeepsEveryMthForGood) {
  const TempDir folder;
  for (std::int64_t step = 10; step <= 90; step += 10) {
    save_whole(folder.path(), Content(step, {10}), 1);
    ASSERT_TRUE(prune(folder.path(), {.last = 2, .every = 30}, step));
  }
  EXPECT_THAT(names_in(folder.path()),
              testing::UnorderedElementsAre("step-30", "step-60", "step-80", "step-90"));
}

// After a resume from an older step the newer, damaged one must not push out what is whole.
TEST(Prune, DoesNotCountWhatIsNewerThanTheStepJustSaved) {
  const TempDir folder;
  for (std::int64_t step : {10, 15, 20}) save_whole(folder.path(), Content(step, {10}), 1);
  ASSERT_TRUE(prune(folder.path(), {.last = 1}, 15));
  EXPECT_THAT(names_in(folder.path()), testing::UnorderedElementsAre("step-15", "step-20"));
}

TEST(Prune, ByManyNodesAtOnceInASharedFolder) {
  for (int round = 0; round < 10; ++round) {
    const TempDir folder;
    for (std::int64_t step : {10, 20, 30, 40, 50}) save_whole(folder.path(), Content(step, {10}), 3);
    std::vector<Result<void>> answers(4);
    std::vector<std::jthread> threads;
    for (auto& answer : answers)
      threads.emplace_back([&] { answer = prune(folder.path(), {.last = 1}, 50); });
    threads.clear();
    for (const auto& answer : answers) EXPECT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(list_checkpoints(folder.path(), true)->size(), 1u);
  }
}

// The victim of the next test: saves step after step until it is killed.
TEST(DISABLED_Saver, SavesForever) {
  const std::string folder = std::getenv("SAVE_FOLDER");
  for (std::int64_t step = *parse_int(std::getenv("SAVE_FROM"));; ++step) {
    save_whole(folder, Content(step, {50'000, 7}), 2);
    ASSERT_TRUE(prune(folder, {.last = 2}, step));
    ASSERT_EQ(write(1, "\1", 1), 1);
  }
}

TEST(Killed, AtAnyMomentTheLastFinishedStepIsThere) {
  const TempDir folder;
  Rng rng(11);
  std::int64_t last = 0;
  for (int round = 0; round < 30; ++round) {
    auto child = spawn(
        {*own_program(), "--gtest_also_run_disabled_tests", "--gtest_filter=DISABLED_Saver.SavesForever"},
        {{"SAVE_FOLDER", folder.path()}, {"SAVE_FROM", std::to_string(last + 1)}});
    ASSERT_TRUE(child) << child.error().message;
    char byte = 0;
    while (read(child->out.get(), &byte, 1) == 1 && byte != '\1') {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(30'000)));
    kill(child->pid, SIGKILL);
    wait_child(*child);
    auto latest = latest_checkpoint(folder.path(), OnDamage::refuse);
    ASSERT_TRUE(latest) << latest.error().message;
    ASSERT_TRUE(latest->reader);
    const std::int64_t step = latest->reader->info().step;
    EXPECT_GT(step, last);
    EXPECT_EQ(difference(*latest->reader, Content(step, {50'000, 7})), "");
    last = step;
  }
}

}  // namespace
}  // namespace muster::train
