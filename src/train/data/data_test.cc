#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "train/data/loader.h"
#include "train/data/memory_stream.h"

namespace muster::train {
namespace {

TEST(Permutation, IsABijectionForEverySize) {
  for (std::uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 255, 256, 257, 1000, 65'537}) {
    for (std::uint64_t epoch : {0, 1}) {
      const Permutation permutation(size, 42, epoch);
      std::vector<bool> seen(size);
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint64_t value = permutation(i);
        ASSERT_LT(value, size);
        ASSERT_FALSE(seen[value]) << size;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, DiffersBySeedAndEpochAndIsNotTheIdentity) {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    const Permutation permutation(1000, seed, epoch);
    std::vector<std::uint64_t> values;
    for (std::uint64_t i = 0; i < 1000; ++i) values.push_back(permutation(i));
    return values;
  };
  const auto matches = [](const auto& a, const auto& b) {
    int count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 1 : 0;
    return count;
  };
  std::vector<std::uint64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0);
  // Two random permutations agree in one place on average.
  EXPECT_LT(matches(order(1, 0), order(2, 0)), 10);
  EXPECT_LT(matches(order(1, 0), order(1, 1)), 10);
  EXPECT_LT(matches(order(1, 0), identity), 10);
  EXPECT_EQ(order(1, 0), order(1, 0));
}

// The first places of many seeds are spread evenly: chi-square with 15 degrees of freedom, 99.99 % bound.
TEST(Permutation, FirstPlacesAreEven) {
  std::vector<int> counts(16);
  for (std::uint64_t seed = 0; seed < 1600; ++seed) ++counts[Permutation(160, seed, 0)(0) / 10];
  double chi = 0;
  for (int count : counts) chi += (count - 100.0) * (count - 100.0) / 100.0;
  EXPECT_LT(chi, 44.3);
}

TEST(Loader, WindowsAreInputsAndTheTokensThatFollow) {
  std::vector<std::int64_t> tokens(26);
  std::iota(tokens.begin(), tokens.end(), 100);
  const MemoryStream stream(tokens, 1000);
  const auto loader = Loader::create(stream, 5, 1);
  ASSERT_TRUE(loader);
  EXPECT_EQ(loader->windows(), 5u);
  Samples out;
  ASSERT_TRUE(loader->windows_in_order(3, 2, out));
  EXPECT_EQ(out.tokens, (std::vector<std::int64_t>{115, 116, 117, 118, 119, 120, 121, 122, 123, 124}));
  EXPECT_EQ(out.targets, (std::vector<std::int64_t>{116, 117, 118, 119, 120, 121, 122, 123, 124, 125}));
}

TEST(Loader, AnEpochTakesEveryWindowOnceAndTheNextInAnotherOrder) {
  std::vector<std::int64_t> tokens(401);
  std::iota(tokens.begin(), tokens.end(), 0);
  const MemoryStream stream(tokens, 1000);
  const auto loader = Loader::create(stream, 4, 9);
  ASSERT_TRUE(loader);
  Samples epochs[2];
  for (std::uint64_t epoch : {0, 1}) {
    ASSERT_TRUE(loader->samples(epoch * 100, 100, epochs[epoch]));
    const std::set<std::int64_t> seen(epochs[epoch].tokens.begin(), epochs[epoch].tokens.end());
    EXPECT_EQ(seen.size(), 400u);
  }
  EXPECT_NE(epochs[0].tokens, epochs[1].tokens);
}

TEST(Loader, RefusesTooLittleData) {
  const MemoryStream stream({1, 2, 3, 4}, 10);
  EXPECT_TRUE(Loader::create(stream, 3, 0));
  const auto loader = Loader::create(stream, 4, 0);
  ASSERT_FALSE(loader);
  EXPECT_THAT(loader.error().message, testing::HasSubstr("the data has 4 tokens, one window of 4 needs 5"));
}

// Ranks with one micro-batch each see what one rank sees in as many micro-batches.
TEST(SplitBatch, PartsTileTheBatchInOrder) {
  const auto whole = split_batch(12, 2, 1, 0);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->count, 6u);
  std::uint64_t next = 0;
  for (int part = 0; part < 3; ++part) {
    const auto share = split_batch(12, 2, 3, part);
    ASSERT_TRUE(share);
    EXPECT_EQ(share->first, next);
    EXPECT_EQ(share->count, 2u);
    next += share->micro * share->count;
  }
  EXPECT_EQ(next, 12u);
}

TEST(SplitBatch, RefusesWhatDoesNotDivide) {
  const auto share = split_batch(10, 2, 3, 0);
  ASSERT_FALSE(share);
  EXPECT_EQ(share.error().message,
            "train.batch = 10 is not a multiple of train.micro_batch = 2 times 3 ranks; the nearest is 12");
}

}  // namespace
}  // namespace muster::train
