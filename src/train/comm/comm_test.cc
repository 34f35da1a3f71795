#include "train/comm/comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "train/comm/agree.h"
#include "train/comm/contract.h"
#include "train/comm/thread.h"

namespace muster::train {
namespace {

// Runs `rank_main` once per rank of a thread world; the comms are made before any of them starts, and those
// that it does not reset live until all have ended.
std::vector<std::string> on_ranks(int size, Millis wait,
                                  const std::function<std::string(std::unique_ptr<Comm>&)>& rank_main) {
  ThreadWorld world(size, wait);
  std::vector<std::unique_ptr<Comm>> comms;
  for (int rank = 0; rank < size; ++rank) comms.push_back(std::make_unique<Comm>("test", world.join(rank)));
  std::vector<std::string> answers(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back([&, rank] { answers[rank] = rank_main(comms[rank]); });
  }
  threads.clear();
  return answers;
}

class Contract : public testing::TestWithParam<int> {};

TEST_P(Contract, Thread) {
  constexpr Millis kWait{400};
  for (const CommCheck& check : comm_contract(kWait)) {
    const auto answers = on_ranks(GetParam(), kWait, check.run);
    for (std::size_t rank = 0; rank < answers.size(); ++rank) {
      EXPECT_EQ(answers[rank], "") << check.name << " on rank " << rank << " of " << GetParam();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, Contract, testing::Values(1, 2, 3, 5));

TEST(Single, NeedsNoPeer) {
  for (const CommCheck& check : comm_contract(Millis(100))) {
    auto comm = std::make_unique<Comm>("test", single_transport());
    EXPECT_EQ(check.run(comm), "") << check.name;
  }
}

// A grid of 2 x 3: rows and columns are groups of one world. Ranks are numbered within each.
TEST(Subgroup, RowsAndColumnsOfAGrid) {
  const auto answers = on_ranks(6, Millis(60'000), [](std::unique_ptr<Comm>& world) -> std::string {
    const int row = world->rank() / 3, column = world->rank() % 3;
    const auto along = world->subgroup("row", {row * 3, row * 3 + 1, row * 3 + 2});
    const auto across = world->subgroup("column", {column, column + 3});
    if (along->rank() != column || along->size() != 3 || across->rank() != row || across->size() != 2)
      return "wrong ranks";
    double value[1] = {static_cast<double>(1 << world->rank())};
    if (auto done = along->all_reduce<double>(value); !done) return done.error().message;
    if (value[0] != (row == 0 ? 7 : 56)) return "row: " + std::to_string(value[0]);
    if (auto done = across->all_reduce<double>(value); !done) return done.error().message;
    if (value[0] != 63) return "column: " + std::to_string(value[0]);
    if (auto done = world->all_reduce<double>(value); !done) return done.error().message;
    if (value[0] != 6 * 63) return "world: " + std::to_string(value[0]);
    std::string groups;  // of all, whichever is asked
    for (const OperationRecord& record : along->recent())
      groups += record.group.substr(0, record.group.find(' ')) + std::to_string(record.sequence) + " ";
    return groups == "row1 column1 test1 " && world->recent().size() == 3 ? "" : "log: " + groups;
  });
  for (const auto& answer : answers) EXPECT_EQ(answer, "");
}

TEST(Subgroup, ADeadlockOverTwoGroupsIsReportedAtOnce) {
  const auto answers = on_ranks(3, Millis(60'000), [](std::unique_ptr<Comm>& world) -> std::string {
    // 0 waits for 1, 1 for 2, 2 for 0, each in another group.
    const int next = (world->rank() + 1) % 3;
    const auto pair = world->subgroup("pair", {world->rank(), next});
    std::array<std::byte, 8> bytes{};
    const Receive receive{.from = 1, .data = bytes};
    const auto done = pair->exchange({}, std::span(&receive, 1));
    return done ? "passed" : done.error().message;
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto pair = "(ranks " + std::to_string(rank) + ", " + std::to_string((rank + 1) % 3) + " of test)";
    EXPECT_THAT(answers[static_cast<std::size_t>(rank)],
                testing::AllOf(testing::HasSubstr("deadlock"), testing::HasSubstr(pair)));
  }
}

// Two ranks that each wait for a message the other never sends, while the third has finished.
TEST(Deadlock, IsReportedAtOnceWithWhatEachRankWaitsFor) {
  const auto start = std::chrono::steady_clock::now();
  const auto answers = on_ranks(3, Millis(60'000), [](std::unique_ptr<Comm>& comm) -> std::string {
    if (comm->rank() == 2) {
      comm.reset();
      return "";
    }
    std::array<std::byte, 8> bytes{};
    const Receive receive{.from = 1 - comm->rank(), .data = bytes};
    const auto done = comm->exchange({}, std::span(&receive, 1));
    return done ? "passed" : done.error().message;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (int rank : {0, 1}) {
    EXPECT_THAT(answers[static_cast<std::size_t>(rank)],
                testing::AllOf(
                    testing::HasSubstr("deadlock"),
                    testing::HasSubstr("rank 0 in exchange #1 of test waits to receive 8 bytes from rank 1"),
                    testing::HasSubstr("rank 1 in exchange #1 of test waits to receive 8 bytes from rank 0"),
                    testing::HasSubstr("rank 2 has left")));
  }
}

// Sends are rendezvous: what gloo's buffers would let pass is a deadlock here.
TEST(Deadlock, SendBeforeReceiveOnBothSides) {
  const auto answers = on_ranks(2, Millis(60'000), [](std::unique_ptr<Comm>& comm) -> std::string {
    std::array<std::byte, 8> bytes{};
    const Send send{.to = 1 - comm->rank(), .data = bytes};
    const Receive receive{.from = 1 - comm->rank(), .data = bytes};
    auto done = comm->exchange(std::span(&send, 1), {});
    if (done) done = comm->exchange({}, std::span(&receive, 1));
    return done ? "passed" : done.error().message;
  });
  for (const auto& answer : answers) EXPECT_THAT(answer, testing::HasSubstr("deadlock"));
}

TEST(Mismatch, NamesBothRanksAndSizes) {
  const auto answers = on_ranks(2, Millis(60'000), [](std::unique_ptr<Comm>& comm) -> std::string {
    std::vector<float> data(comm->rank() == 0 ? 8 : 12);
    const auto done = comm->all_reduce<float>(data);
    return done ? "passed" : done.error().message;
  });
  for (const auto& answer : answers) {
    EXPECT_THAT(answer,
                testing::ContainsRegex(
                    "rank [01] sends (16|24) bytes in all_reduce #1 of test, rank [01] expects (16|24)"));
  }
}

// The first rank's error, code and all, on every rank; what each tells, where all goes well.
TEST(Agree, TheCodeIsThatOfTheRankThatFailed) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    const auto answers = on_ranks(3, Millis(60'000), [&](std::unique_ptr<Comm>& comm) -> std::string {
      Result<std::string> mine = std::to_string(comm->rank());
      if (comm->rank() > 0) mine = fail(static_cast<ErrorCode>(code + comm->rank() - 1), "no room");
      const auto agreed = agree(*comm, mine);
      if (agreed) return "agreed";
      return std::to_string(static_cast<int>(agreed.error().code)) + " " + agreed.error().message;
    });
    for (const auto& answer : answers)
      EXPECT_EQ(answer, std::to_string(code) + " rank 1: no room; 1 more rank failed");
  }
  const auto answers = on_ranks(3, Millis(60'000), [](std::unique_ptr<Comm>& comm) -> std::string {
    const auto all =
        agree(*comm, Result<std::string>(std::string(static_cast<std::size_t>(comm->rank()), 'x')));
    return all ? (*all)[0] + "|" + (*all)[1] + "|" + (*all)[2] : all.error().message;
  });
  for (const auto& answer : answers) EXPECT_EQ(answer, "|x|xx");
}

TEST(Abort, EndsAWaitAtOnce) {
  const auto answers = on_ranks(2, Millis(60'000), [](std::unique_ptr<Comm>& comm) -> std::string {
    if (comm->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      comm->abort("test over");
    }
    const auto done = comm->barrier();
    return done ? "passed" : done.error().message;
  });
  for (const auto& answer : answers) EXPECT_THAT(answer, testing::HasSubstr("rank 1 aborted: test over"));
}

}  // namespace
}  // namespace muster::train
