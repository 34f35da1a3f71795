#include "train/layout/layout.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace muster::train {
namespace {

using Runs = std::vector<Run>;

// The naive model: where in the slice each element of the tensor lies, by its row-major number in the tensor.
std::map<std::int64_t, std::int64_t> elements(const Slice& slice, const std::vector<std::int64_t>& shape) {
  std::map<std::int64_t, std::int64_t> places;
  for (std::int64_t i = slice.flat.begin; i < slice.flat.end; ++i) {
    std::int64_t global = 0, stride = 1, rest = i;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      global += (slice.box.start[axis] + rest % slice.box.length[axis]) * stride;
      rest /= slice.box.length[axis];
      stride *= shape[axis];
    }
    places[global] = i - slice.flat.begin;
  }
  return places;
}

constexpr int kCases = 5000;  // each its own seed, which a failure names

// A whole number from `least` to `most`.
std::int64_t pick(Rng& rng, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(most - least + 1)));
}

// Most often the whole axis, a half, or all elements of the box: what layouts do.
Slice random_slice(Rng& rng, const std::vector<std::int64_t>& shape) {
  Box box;
  for (const auto length : shape) {
    const auto part = part_of(length, static_cast<int>(pick(rng, 0, 1)), 2);
    switch (pick(rng, 0, 2)) {
      case 0:
        box.start.push_back(0);
        box.length.push_back(length);
        break;
      case 1:
        box.start.push_back(part.begin);
        box.length.push_back(part.size());
        break;
      default:
        box.start.push_back(pick(rng, 0, length - 1));
        box.length.push_back(pick(rng, pick(rng, 0, 9) == 0 ? 0 : 1, length - box.start.back()));
    }
  }
  const auto numel = box.numel();
  if (pick(rng, 0, 1) == 0) return whole_slice("t", box);
  const auto begin = pick(rng, 0, numel / 2);
  return {"t", box, {begin, pick(rng, begin, numel)}};
}

TEST(Layout, IntersectIsWhatTheElementMapSays) {
  int shared = 0, in_runs = 0;
  for (int number = 0; number < kCases; ++number) {
    Rng rng(static_cast<std::uint64_t>(number));
    std::vector<std::int64_t> shape;
    const auto axes = pick(rng, 0, 3);
    for (int i = 0; i < axes; ++i) shape.push_back(pick(rng, 1, 6));
    const auto a = random_slice(rng, shape), b = random_slice(rng, shape);
    const auto in_a = elements(a, shape), in_b = elements(b, shape);
    Runs wanted;
    for (const auto& [global, at] : in_a) {
      const auto other = in_b.find(global);
      if (other == in_b.end()) continue;
      if (!wanted.empty() && wanted.back().a + wanted.back().count == at &&
          wanted.back().b + wanted.back().count == other->second) {
        ++wanted.back().count;
      } else {
        wanted.push_back({at, other->second, 1});
      }
    }
    ASSERT_EQ(intersect(a, b), wanted) << "case " << number;
    shared += !wanted.empty();
    in_runs += wanted.size() > 1;
  }
  // The cases must be worth their time.
  EXPECT_GT(shared, kCases / 5);
  EXPECT_GT(in_runs, kCases / 20);
}

TEST(Layout, PartsCoverOnceAndDifferByOne) {
  for (int number = 0; number < kCases; ++number) {
    Rng rng(static_cast<std::uint64_t>(number));
    const auto total = pick(rng, 0, 100);
    const auto parts = static_cast<int>(pick(rng, 1, 12));
    std::int64_t next = 0;
    for (int part = 0; part < parts; ++part) {
      const auto range = part_of(total, part, parts);
      ASSERT_TRUE(range.begin == next) << "case " << number;
      ASSERT_TRUE(range.size() == total / parts || range.size() == total / parts + 1) << "case " << number;
      next = range.end;
    }
    ASSERT_TRUE(next == total) << "case " << number;
  }
}

TEST(Layout, ColumnsOfAMatrixAreARunARow) {
  const auto whole = whole_slice("w", whole_box({3, 4}));
  const auto right = whole_slice("w", {{0, 2}, {3, 2}});
  EXPECT_EQ(intersect(whole, right), (Runs{{2, 0, 2}, {6, 2, 2}, {10, 4, 2}}));
  const auto rows = whole_slice("w", {{1, 0}, {2, 4}});
  EXPECT_EQ(intersect(whole, rows), (Runs{{4, 0, 8}}));
  EXPECT_TRUE(intersect(whole, whole_slice("v", whole_box({3, 4}))).empty());
}

// 1,000 shards of a big matrix against one column cut: the rows outside each shard cost nothing.
TEST(Layout, ShardsAreMetInTheRowsTheyHold) {
  const std::int64_t rows = 100'000, columns = 64;
  const auto cut = whole_slice("w", {{0, 16}, {rows, 16}});
  std::int64_t shared = 0, runs = 0;
  for (int part = 0; part < 1000; ++part) {
    const Slice shard{"w", whole_box({rows, columns}), part_of(rows * columns, part, 1000)};
    for (const auto& run : intersect(shard, cut)) shared += run.count, ++runs;
  }
  EXPECT_EQ(shared, rows * 16);
  EXPECT_LE(runs, rows + 1000);
}

}  // namespace
}  // namespace muster::train
