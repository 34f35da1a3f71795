#include "train/shard/gather.h"

#include <gtest/gtest.h>

#include "train/comm/test_ranks.h"

namespace muster::train {
namespace {

struct Traffic {
  std::uint64_t flat = 0, across = 0, within = 0;  // bytes sent by a rank
};

std::uint64_t sent(const Comm& comm) {
  std::uint64_t bytes = 0;
  for (const OperationRecord& record : comm.recent()) {
    if (record.group == comm.group()) bytes += record.bytes_sent;
  }
  return bytes;
}

// A unit of parts of these sizes, gathered both ways by ranks of which `local` are on a node.
std::vector<Traffic> gather_both(const std::vector<std::int64_t>& sizes, int local) {
  const int size = static_cast<int>(sizes.size());
  std::vector<Range> parts;
  for (const std::int64_t part : sizes) {
    const std::int64_t begin = parts.empty() ? 0 : parts.back().end;
    parts.push_back({begin, begin + part});
  }
  const auto numel = static_cast<std::size_t>(parts.back().end);
  return on_ranks(size, [&](Comm& all) {
    const int rank = all.rank();
    std::vector<int> across, within;
    for (int other = 0; other < size; ++other) {
      if (other % local == rank % local) across.push_back(other);
      if (other / local == rank / local) within.push_back(other);
    }
    const auto a = all.subgroup("across", across), w = all.subgroup("within", within);
    const auto gathered = [&](const GatherGroups& groups) {
      std::vector<float> unit(numel, -1);
      const Range mine = parts[static_cast<std::size_t>(rank)];
      for (auto i = mine.begin; i < mine.end; ++i) unit[static_cast<std::size_t>(i)] = static_cast<float>(i);
      EXPECT_TRUE(gather(groups, std::as_writable_bytes(std::span(unit)), parts, sizeof(float)));
      for (std::size_t i = 0; i < numel; ++i) EXPECT_EQ(unit[i], static_cast<float>(i)) << i;
    };
    gathered({.all = &all});
    gathered({.all = &all, .across = a.get(), .within = w.get()});
    const Traffic traffic = {sent(all), sent(*a), sent(*w)};
    EXPECT_TRUE(all.barrier());
    return traffic;
  });
}

TEST(Gather, InTwoLevelsIsTheSameUnevenAndWithEmptyParts) {
  gather_both({5, 0, 3, 4, 0, 7}, 2);
  gather_both({5, 0, 3, 4, 0, 7}, 3);
  gather_both({1, 2, 3, 4, 5, 6, 7, 8}, 4);
  gather_both({2, 2}, 2);
}

// MiCS: of M bytes over p ranks with k on a node, (p - k) M / p come into each node, flat k times that.
TEST(Gather, BytesThatCrossIntoANode) {
  const int local = 4, nodes = 3, p = local * nodes;
  const std::uint64_t part = 100 * sizeof(float), unit = part * p;
  const auto traffic = gather_both(std::vector<std::int64_t>(p, 100), local);
  std::uint64_t across = 0;
  for (const Traffic& rank : traffic) {
    across += rank.across;
    EXPECT_EQ(rank.flat, (p - 1) * part);
    EXPECT_EQ(rank.within, (local - 1) * part * nodes);
  }
  EXPECT_EQ(across, nodes * (p - local) * unit / p);
}

}  // namespace
}  // namespace muster::train
