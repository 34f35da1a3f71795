// One contract for every Store.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <functional>

#include "base/file.h"
#include "base/sqlite.h"
#include "ports/store.h"
#include "store/memory/store.h"
#include "store/sqlite/store.h"

namespace muster::store {
namespace {

using domain::Commit;
using domain::Erase;
using domain::Outbox;
using domain::Put;
using domain::RecordKind;

// A place where a store lives, and opens again as after a restart.
struct Place {
  virtual ~Place() = default;
  virtual ports::Store& open() = 0;
};
struct MemoryPlace : Place {
  MemoryStore store;
  ports::Store& open() override { return store; }
};
struct SqlitePlace : Place {
  TempDir directory;
  std::unique_ptr<ports::Store> store;
  ports::Store& open() override {
    store.reset();
    auto opened = open_sqlite(directory.path(), {.ballast_bytes = 64 << 10});
    EXPECT_TRUE(opened) << opened.error().message;
    store = *std::move(opened);
    return *store;
  }
};

struct Adapter {
  const char* name;
  std::function<std::unique_ptr<Place>()> make;
};

class StoreContract : public testing::TestWithParam<Adapter> {
 protected:
  std::unique_ptr<Place> place_ = GetParam().make();
};

Commit put(std::uint64_t sequence, std::string body) {
  return {{Put{Outbox{sequence, "k", std::move(body)}}}};
}

TEST_P(StoreContract, ANewStoreIsEmptyAndItsEpochRises) {
  auto& store = place_->open();
  EXPECT_EQ(store.meta()->commit_sequence, 0U);
  EXPECT_TRUE(store.load()->empty());
  const auto first = store.open_epoch()->epoch;
  EXPECT_EQ(place_->open().open_epoch()->epoch, first + 1);
}

TEST_P(StoreContract, WhatWasCommittedIsThereAfterReopening) {
  auto* store = &place_->open();
  const auto epoch = store->open_epoch()->epoch;
  EXPECT_EQ(store->commit(0, epoch, put(1, "one"))->commit_sequence, 1U);
  EXPECT_EQ(store
                ->commit(1, epoch,
                         {{Put{Outbox{1, "k", "uno"}}, Put{Outbox{2, "k", "two"}}, Put{Outbox{3, "k", "3"}},
                           Erase{RecordKind::outbox, "3"}, Erase{RecordKind::job, "99"}}})
                ->commit_sequence,
            2U);
  store = &place_->open();
  EXPECT_EQ(store->meta()->commit_sequence, 2U);
  const auto loaded = store->load();
  ASSERT_TRUE(loaded);
  std::vector<Outbox> entries;
  for (const auto& change : loaded->changes)
    entries.push_back(std::get<Outbox>(std::get<Put>(change).record));
  EXPECT_EQ(entries, (std::vector<Outbox>{{1, "k", "uno"}, {2, "k", "two"}}));
}

TEST_P(StoreContract, RequestsAreReadOneByOneAndNotLoaded) {
  auto& store = place_->open();
  const auto epoch = store.open_epoch()->epoch;
  domain::JobRequest request{{5}, std::string(400'000, 'x'), {}};
  ASSERT_TRUE(store.commit(0, epoch, {{Put{request}}}));
  EXPECT_TRUE(store.load()->empty());
  const auto read = store.read(RecordKind::request, "5");
  ASSERT_TRUE(read && *read);
  EXPECT_EQ(std::get<domain::JobRequest>(**read), request);
  EXPECT_FALSE(store.read(RecordKind::request, "6")->has_value());
}

TEST_P(StoreContract, AMovedSequenceOrEpochFencesTheWriterOut) {
  auto& store = place_->open();
  const auto epoch = store.open_epoch()->epoch;
  ASSERT_TRUE(store.commit(0, epoch, put(1, "a")));
  for (const auto& [sequence, of] :
       {std::pair{std::uint64_t{0}, epoch}, {std::uint64_t{1}, epoch - 1}, {std::uint64_t{2}, epoch}}) {
    const auto refused = store.commit(sequence, of, put(2, "b"));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::failed_precondition);
  }
  ASSERT_TRUE(store.open_epoch());
  EXPECT_FALSE(store.commit(1, epoch, put(2, "b")));
  EXPECT_EQ(store.load()->changes.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(All, StoreContract,
                         testing::Values(Adapter{"memory", [] { return std::make_unique<MemoryPlace>(); }},
                                         Adapter{"sqlite", [] { return std::make_unique<SqlitePlace>(); }}),
                         [](const auto& param) { return param.param.name; });

TEST(MemoryStore, FailsWhenTold) {
  MemoryStore store;
  const auto epoch = store.open_epoch()->epoch;
  store.fail_after(1);
  EXPECT_TRUE(store.commit(0, epoch, put(1, "a")));
  EXPECT_EQ(store.commit(1, epoch, put(2, "b")).error().code, ErrorCode::io);
  EXPECT_EQ(store.load()->changes.size(), 1U);
  store.heal();
  EXPECT_TRUE(store.commit(1, epoch, put(2, "b")));
}

TEST(SqliteStore, NewerRecordsAndFormatsAreRefused) {
  TempDir directory;
  { ASSERT_TRUE(open_sqlite(directory.path(), {.ballast_bytes = 0})); }
  {
    auto database = sqlite::Database::open(directory / "state.db");
    ASSERT_TRUE(database->execute("INSERT INTO record VALUES(5, '1', 1, 2, '{}')"));
  }
  {
    auto store = open_sqlite(directory.path(), {.ballast_bytes = 0});
    const auto loaded = (*store)->load();
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, ErrorCode::unsupported);
    auto database = sqlite::Database::open(directory / "state.db");
    ASSERT_TRUE(database->execute("UPDATE record SET kind = 7, version = 1"));
    const auto unknown = (*store)->load();
    ASSERT_FALSE(unknown);
    EXPECT_NE(unknown.error().message.find("kind is unknown: 7"), std::string::npos);
    ASSERT_TRUE(database->execute("UPDATE meta SET format = 2"));
  }
  const auto refused = open_sqlite(directory.path(), {.ballast_bytes = 0});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("has format 2, this program reads 1"), std::string::npos);
}

// A file system of `bytes` at `path`, for this process only and until it ends.
bool mount_small_disk(const std::string& path, const char* size) {
  const int wanted = ::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS;
  return ::unshare(wanted) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("muster-test", path.c_str(), "tmpfs", 0, size) == 0;
}

void fill(const TempDir& directory) {
  auto filler = open_file(directory / "filler", O_WRONLY | O_CREAT | O_APPEND);
  const std::string block(4096, 'x');
  while (write_all(filler->get(), block)) {
  }
}

TEST(SqliteStore, OnAFullDiskItOpensAgain) {
  TempDir directory;
  if (!mount_small_disk(directory.path(), "size=8m")) GTEST_SKIP() << "no right to mount a small file system";
  const SqliteOptions options{.ballast_bytes = 2 << 20};
  {
    auto store = *open_sqlite(directory.path(), options);
    ASSERT_TRUE(store->commit(0, store->open_epoch()->epoch, put(1, "a")));
  }
  fill(directory);
  auto opened = open_sqlite(directory.path(), options);
  ASSERT_TRUE(opened) << opened.error().message;
  auto& store = **opened;
  const auto meta = store.open_epoch();
  ASSERT_TRUE(meta) << meta.error().message;
  EXPECT_EQ(meta->commit_sequence, 1U);
  EXPECT_TRUE(store.low_on_space());
  EXPECT_TRUE(store.commit(1, meta->epoch, put(2, "b")));
}

// The log of a process that died is there; what is left on the disk may not do for a new entry.
TEST(SqliteStore, OnAFullDiskANewEpochTakesTheBallast) {
  TempDir directory;
  if (!mount_small_disk(directory.path(), "size=8m")) GTEST_SKIP() << "no right to mount a small file system";
  auto store = *open_sqlite(directory.path(), {.ballast_bytes = 2 << 20});
  fill(directory);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store->open_epoch()) << i;
  EXPECT_TRUE(store->low_on_space());
}

TEST(SqliteStore, OnAFullDiskTheBallastLetsEndsBeWritten) {
  TempDir directory;
  if (!mount_small_disk(directory.path(), "size=8m")) GTEST_SKIP() << "no right to mount a small file system";
  auto store = *open_sqlite(directory.path(), {.ballast_bytes = 2 << 20});
  EXPECT_FALSE(store->low_on_space());
  const auto epoch = store->open_epoch()->epoch;
  auto sequence = store->commit(0, epoch, put(1, "a"))->commit_sequence;
  fill(directory);
  // Small writes may still find room in the log; a larger one needs what was held back.
  for (int i = 0; i < 40; ++i) {
    const auto done =
        store->commit(sequence, epoch, put(static_cast<std::uint64_t>(i), std::string(30'000, 'x')));
    ASSERT_TRUE(done) << i << ": " << done.error().message;
    sequence = done->commit_sequence;
  }
  EXPECT_EQ(store->low_on_space()->folder, directory.path());
  EXPECT_EQ(store->low_on_space()->needed, 4U << 20);
  EXPECT_LE(store->low_on_space()->free, 4U << 20);
  EXPECT_TRUE(low_on_space(directory.path(), {.ballast_bytes = 2 << 20}));
  Error error;
  for (int i = 0; i < 400 && error.message.empty(); ++i) {
    const auto done =
        store->commit(sequence, epoch, put(static_cast<std::uint64_t>(i), std::string(60'000, 'x')));
    if (done) {
      sequence = done->commit_sequence;
    } else {
      error = done.error();
    }
  }
  EXPECT_EQ(error.code, ErrorCode::io) << error.message;
  EXPECT_EQ(store->meta()->commit_sequence, sequence);
  EXPECT_TRUE(store->load());
  EXPECT_TRUE(store->low_on_space());
  ::unlink((directory / "filler").c_str());
  EXPECT_FALSE(low_on_space(directory.path(), {.ballast_bytes = 2 << 20}));
  EXPECT_FALSE(store->low_on_space()) << "room must be seen without a commit: an idle service makes none";
  EXPECT_TRUE(store->commit(sequence, epoch, put(9, "b")));
}

TEST(SqliteStore, AMissingDirectoryIsNamed) {
  const auto refused = open_sqlite("/nonexistent/muster");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("/nonexistent/muster/state.db"), std::string::npos);
}

}  // namespace
}  // namespace muster::store
