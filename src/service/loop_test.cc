// The loop stepped by hand: fencing, bounds, group commit, back-off.
#include "service/loop.h"

#include <gtest/gtest.h>

#include "store/memory/store.h"

namespace muster::service {
namespace {

struct ManualClock final : Clock {
  Time time{1'000'000};
  Time now() const override { return time; }
};

struct Orders final : Executor {
  std::vector<std::pair<std::string, Order>> taken;
  void submit(std::string key, Order order) override { taken.emplace_back(std::move(key), std::move(order)); }
};

class LoopTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop_.open()); }
  void submit(const std::string& name, int nodes = 1) {
    control::SubmitJob job;
    job.name = name;
    job.nodes = nodes;
    loop_.post(std::move(job), [this](auto reply) { replies_.push_back(std::move(reply)); });
  }
  // The engine answers the look that the loop has asked for.
  void answer_refresh(int nodes, std::vector<domain::Observation> observations = {}) {
    for (const auto& [key, order] : std::exchange(orders_.taken, {})) {
      const auto* refresh = std::get_if<RefreshOrder>(&order);
      if (refresh == nullptr) continue;
      control::EngineInventory event{refresh->asked, {}, observations};
      for (int i = 1; i <= nodes; ++i)
        event.inventory.nodes.push_back({"node-" + std::to_string(i), 1, 0, {}, true, {}});
      loop_.finished({key, event, {}});
    }
  }

  // Lets `seconds` pass in which the engine shows `seen` and refuses every release; how many there were.
  int refused_releases(int seconds, const std::vector<domain::Observation>& seen) {
    int releases = 0;
    for (int second = 0; second < seconds; ++second) {
      loop_.step();
      for (const auto& [key, order] : std::exchange(orders_.taken, {})) {
        if (std::holds_alternative<ReleaseOrder>(order)) {
          ++releases;
          loop_.finished({key, {}, Error{ErrorCode::io, "busy"}});
        } else {
          loop_.finished({key, control::EngineInventory{SIZE_MAX, {}, seen}, {}});
        }
      }
      loop_.step();
      monotonic_ += Millis{1'000};
      clock_.time = clock_.time + Millis{1'000};
    }
    return releases;
  }

  store::MemoryStore store_;
  Orders orders_;
  ManualClock clock_;
  Millis monotonic_{0};
  Loop loop_{store_,
             orders_,
             clock_,
             [this] { return monotonic_; },
             {.batch_max = 256, .queue_max = 8, .queue_reserved = 4, .note = [this](std::string_view line) {
                said_.emplace_back(line);
              }}};
  std::vector<std::string> said_;
  std::vector<Result<control::Reply>> replies_;
};

TEST_F(LoopTest, ABatchIsOneCommitAndItsRepliesFollow) {
  submit("a");
  submit("b");
  EXPECT_TRUE(replies_.empty());
  const auto before = store_.meta()->commit_sequence;
  EXPECT_TRUE(loop_.step());
  EXPECT_EQ(store_.meta()->commit_sequence, before + 1);
  ASSERT_EQ(replies_.size(), 2U);
  EXPECT_TRUE(replies_[0] && replies_[1]);
  EXPECT_FALSE(loop_.step());
}

TEST_F(LoopTest, NothingIsPlacedBeforeTheEngineWasSeen) {
  submit("a");
  loop_.step();
  EXPECT_EQ(loop_.state().jobs.begin()->second.phase, domain::Phase::queued);
  answer_refresh(1);
  loop_.step();
  EXPECT_EQ(loop_.state().jobs.begin()->second.phase, domain::Phase::launching);
  ASSERT_EQ(orders_.taken.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<LaunchOrder>(orders_.taken[0].second));
}

TEST_F(LoopTest, AFullQueueKeepsRoomForStopsAndRunners) {
  for (int i = 0; i < 6; ++i) submit("j" + std::to_string(i));
  ASSERT_EQ(replies_.size(), 2U);  // 4 wait; the others were refused at once
  EXPECT_EQ(replies_[0].error().code, ErrorCode::resource_exhausted);
  int answered = 0;
  for (int i = 0; i < 6; ++i) {
    loop_.post(control::StopJob{domain::JobKind::training, "j0"}, [&](const auto&) { ++answered; });
  }
  EXPECT_EQ(answered, 2);                                            // 4 more had room
  loop_.post(control::RankGone{{domain::AttemptId{1}, 0, 1}, "x"});  // never refused
  loop_.step();
  EXPECT_EQ(answered, 6);
}

TEST_F(LoopTest, AFailedCommitForgetsTheBatchAndPausesAdmission) {
  submit("a");
  loop_.step();
  store_.fail_after(0);
  submit("b");
  loop_.step();
  EXPECT_EQ(replies_.back().error().code, ErrorCode::unavailable);
  EXPECT_EQ(loop_.state().names.size(), 1U);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(said_[0].find("the state store refused a write"), 0U) << said_[0];
  store_.heal();
  submit("c");
  loop_.step();
  EXPECT_EQ(replies_.back().error().message,
            "the state store refuses writes: no new jobs until it accepts one");
  monotonic_ += Millis{1'000};
  loop_.step();  // the tick tries the store
  EXPECT_EQ(said_.back(), "the state store accepts writes again");
  submit("c");
  loop_.step();
  EXPECT_TRUE(replies_.back());
}

struct FullDisk final : ports::Store {
  explicit FullDisk(ports::Store& store) : disk(store) {}
  Result<ports::StoreMeta> meta() override { return disk.meta(); }
  Result<ports::StoreMeta> open_epoch() override { return disk.open_epoch(); }
  Result<domain::Commit> load() override { return disk.load(); }
  Result<std::optional<domain::Record>> read(domain::RecordKind kind, std::string_view key) override {
    return disk.read(kind, key);
  }
  Result<ports::StoreMeta> commit(std::uint64_t sequence, std::uint64_t epoch,
                                  const domain::Commit& commit) override {
    return disk.commit(sequence, epoch, commit);
  }
  std::optional<Shortage> low_on_space() override {
    return Shortage{.folder = "/data/state", .free = 12 << 20, .needed = 16 << 20};
  }
  ports::Store& disk;
};

TEST_F(LoopTest, OnAFullDiskJobsAreRefusedAndStopsAreNot) {
  submit("a");
  loop_.step();
  FullDisk full(store_);
  Loop next(full, orders_, clock_, [this] { return monotonic_; });
  ASSERT_TRUE(next.open());
  std::vector<Result<control::Reply>> replies;
  const auto keep = [&](auto reply) { replies.push_back(std::move(reply)); };
  control::SubmitJob job;
  job.name = "b";
  next.post(job, keep);
  next.post(control::StopJob{domain::JobKind::training, "a"}, keep);
  next.step();
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(replies[0].error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(
      replies[0].error().message,
      "no new jobs until there is room: 12.0 MiB are free on the disk of /data/state and more than 16.0 "
      "MiB are needed; free space there, or remove what old jobs left with: muster prune --objects");
  EXPECT_TRUE(replies[1]);
}

TEST_F(LoopTest, ALookAtTheEngineFromBeforeAReloadIsIgnored) {
  loop_.step();
  const auto old = orders_.taken;
  ASSERT_EQ(old.size(), 1U);
  store_.fail_after(0);
  submit("a");
  loop_.step();  // reloads and asks again
  store_.heal();
  loop_.finished({old[0].first, control::EngineInventory{}, {}});
  loop_.step();
  EXPECT_FALSE(loop_.state().inventory_known);
}

// Otherwise a stop could end the job, and free its nodes, while its launch is still under way.
TEST_F(LoopTest, AReloadRemembersTheLaunchesInHand) {
  submit("a");
  loop_.step();
  answer_refresh(1);
  loop_.step();
  ASSERT_EQ(loop_.state().launching.size(), 1U);
  store_.fail_after(0);
  submit("b");
  loop_.step();
  store_.heal();
  EXPECT_EQ(loop_.state().launching.size(), 1U);
  loop_.post(control::StopJob{domain::JobKind::training, "a"});
  answer_refresh(1);
  loop_.step();
  EXPECT_EQ(loop_.state().jobs.size(), 1U);  // ends when the launch has
}

TEST_F(LoopTest, AFencedLoopEnds) {
  ASSERT_TRUE(store_.open_epoch());
  submit("a");
  loop_.step();
  ASSERT_TRUE(loop_.fatal());
  EXPECT_EQ(replies_.back().error().code, ErrorCode::unavailable);
  submit("b");
  loop_.step();
  EXPECT_EQ(replies_.back().error().code, ErrorCode::failed_precondition);
}

TEST_F(LoopTest, TimeNeverGoesBackAcrossARestart) {
  submit("a");
  loop_.step();
  clock_.time = Time{5};
  Loop next(store_, orders_, clock_, [this] { return monotonic_; });
  ASSERT_TRUE(next.open());
  EXPECT_EQ(next.now(), Time{1'000'000});
}

TEST_F(LoopTest, AFailedEffectIsTriedAgainLaterAndLater) {
  const domain::Observation dead{{domain::AttemptId{77}, 0, 1}, "node-1", false};
  loop_.step();
  answer_refresh(1, {dead});
  EXPECT_EQ(refused_releases(20, {dead}), 5);  // after 0, 1, 2, 4 and 8 s
  // From the third failure on.
  EXPECT_EQ(said_, std::vector<std::string>(3, "release a77-r0-i1 fails and is tried again: busy"));
}

TEST_F(LoopTest, TheBackOffOfAnEffectGoesWithTheEffect) {
  const domain::Observation dead{{domain::AttemptId{77}, 0, 1}, "node-1", false};
  EXPECT_EQ(refused_releases(5, {dead}), 3);  // the next would follow in second 8
  EXPECT_EQ(refused_releases(1, {}), 0);      // it has vanished by itself
  EXPECT_EQ(refused_releases(2, {dead}), 1);
}

TEST_F(LoopTest, AnEngineThatCannotBeLookedAtIsSaid) {
  for (int second = 0; second < 4; ++second) {
    loop_.step();
    for (const auto& [key, order] : std::exchange(orders_.taken, {}))
      loop_.finished({key, {}, Error{ErrorCode::io, "no cgroups"}});
    monotonic_ += Millis{1'000};
  }
  loop_.step();
  EXPECT_EQ(said_, std::vector<std::string>(2, "look at the nodes fails and is tried again: no cgroups"));
}

TEST_F(LoopTest, ALaunchThatFailsIsSaidAtOnce) {
  submit("a");
  loop_.step();
  answer_refresh(1);
  loop_.step();
  ASSERT_EQ(orders_.taken.size(), 1U);
  loop_.finished({orders_.taken[0].first,
                  control::LaunchDone{domain::AttemptId{1}, Error{ErrorCode::io, "no cgroups"}},
                  {}});
  loop_.step();
  EXPECT_EQ(said_, std::vector<std::string>{"launch 1 of job a has failed: no cgroups"});
}

// A large prune must not stand in the way of launches and stops.
TEST_F(LoopTest, FewOutboxEntriesAreInHandAtOnce) {
  const auto outbox_orders = [&] {
    std::vector<std::string> keys;
    for (const auto& [key, order] : std::exchange(orders_.taken, {}))
      if (std::holds_alternative<OutboxOrder>(order)) keys.push_back(key);
    return keys;
  };
  for (int i = 0; i < 5; ++i) {
    const auto name = "j" + std::to_string(i);
    submit(name);
    loop_.step();
    loop_.post(control::StopJob{domain::JobKind::training, name});
    loop_.step();
  }
  loop_.post(control::PruneJobs{clock_.time + Millis{1}});
  loop_.step();
  ASSERT_EQ(loop_.state().outbox.size(), 5U);
  const std::vector<std::string> first = {"outbox 1", "outbox 2"};
  ASSERT_EQ(outbox_orders(), first);
  loop_.finished({"outbox 1", {}, Error{ErrorCode::io, "busy"}});  // it waits, the others do not
  loop_.finished({"outbox 2", control::OutboxDone{2}, {}});
  loop_.step();
  const std::vector<std::string> next = {"outbox 3", "outbox 4"};
  EXPECT_EQ(outbox_orders(), next);
}

}  // namespace
}  // namespace muster::service
