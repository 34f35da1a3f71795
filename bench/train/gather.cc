// One rank of a measurement of gathers over a shard group that spans nodes, flat and in two levels, in
// alternation: time, bytes between the nodes by the log of the group's operations, and bytes on the wire by
// the counters of the network interfaces of rank 0's node. mics.py starts the ranks, two nodes of equal size.
//   bench_gather RANK SIZE NODE_RANKS STORE_HOST STORE_PORT ADDRESS MIB ROUNDS
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "bench/support/summary.h"
#include "train/comm/gloo/gloo.h"
#include "train/loop/groups.h"

namespace muster::train {
namespace {

using Clock = std::chrono::steady_clock;

struct Place {
  int rank = 0, size = 0, node_ranks = 0;
};

// Received by all network interfaces of this network namespace but the loopback.
Result<double> received_bytes() {
  MUSTER_TRY(const std::string text, read_file("/proc/net/dev", 1 << 20));
  double sum = 0;
  for (const auto line : split(text, '\n')) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || trim(line.substr(0, colon)) == "lo") continue;
    sum += std::strtod(std::string(line.substr(colon + 1)).c_str(), nullptr);
  }
  return sum;
}

// The bytes that this rank sent to other nodes in its last gather of two levels, by the log.
double sent_across(const Comm& world) {
  double bytes = 0;
  for (const OperationRecord& record : world.recent()) {
    if (record.group.starts_with("shard across nodes")) bytes = static_cast<double>(record.bytes_sent);
  }
  return bytes;
}

Result<Groups> groups_of(const Place& place, const char* gather, Comm& world) {
  Config config;
  config.mesh.shard = place.size;
  config.gather = gather;
  MUSTER_TRY(const Mesh mesh, Mesh::create(place.size, config.mesh));
  return make_groups(config, mesh, world, place.node_ranks);
}

void fill(std::span<float> unit, const Range& mine) {
  std::ranges::fill(unit, -1.0F);
  for (auto i = mine.begin; i < mine.end; ++i)
    unit[static_cast<std::size_t>(i)] = static_cast<float>(i % 4093);
}

Result<void> check(std::span<const float> unit) {
  for (std::size_t i = 0; i < unit.size(); ++i) {
    if (unit[i] != static_cast<float>(i % 4093))
      return fail(ErrorCode::internal, "element " + std::to_string(i) + " was not gathered");
  }
  return {};
}

struct Sample {
  double milliseconds = 0;  // until the slowest rank has everything
  double wire = 0;          // received by this rank's node
};

Result<Sample> measure(Comm& world, const GatherGroups& groups, std::span<float> unit,
                       std::span<const Range> parts) {
  fill(unit, parts[static_cast<std::size_t>(world.rank())]);
  MUSTER_CHECK(world.barrier());
  MUSTER_TRY(const double before, received_bytes());
  const auto start = Clock::now();
  MUSTER_CHECK(gather(groups, std::as_writable_bytes(unit), parts, sizeof(float)));
  const double mine = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  MUSTER_CHECK(world.all_gather<double>(std::span(&mine, 1), all));
  MUSTER_TRY(const double after, received_bytes());
  MUSTER_CHECK(check(unit));
  return Sample{.milliseconds = std::ranges::max(all), .wire = after - before};
}

Result<void> run(const Place& place, Comm& world, std::size_t mib, int rounds) {
  MUSTER_TRY(const Groups flat, groups_of(place, "flat", world));
  MUSTER_TRY(const Groups two_levels, groups_of(place, "hierarchical", world));
  std::vector<float> unit((mib << 20) / sizeof(float));
  std::vector<Range> parts;
  for (int rank = 0; rank < place.size; ++rank)
    parts.push_back(part_of(static_cast<std::int64_t>(unit.size()), rank, place.size));
  std::vector<double> flat_ms, levels_ms, flat_wire, levels_wire;
  for (int round = -1; round < rounds; ++round) {
    MUSTER_TRY(const Sample one, measure(world, flat.gather(), unit, parts));
    MUSTER_TRY(const Sample two, measure(world, two_levels.gather(), unit, parts));
    if (round < 0) continue;  // touches its memory, opens its windows
    flat_ms.push_back(one.milliseconds);
    levels_ms.push_back(two.milliseconds);
    flat_wire.push_back(one.wire);
    levels_wire.push_back(two.wire);
  }
  const double mine = sent_across(world);
  std::vector<double> sent(static_cast<std::size_t>(place.size));
  MUSTER_CHECK(world.all_gather<double>(std::span(&mine, 1), sent));
  if (place.rank != 0) return {};
  double logged = 0;
  for (int rank = place.node_ranks; rank < place.size; ++rank) logged += sent[static_cast<std::size_t>(rank)];
  const double bytes = static_cast<double>(unit.size() * sizeof(float));
  const double rule = bytes * (place.size - place.node_ranks) / place.size;
  for (double& wire : flat_wire) wire /= rule * place.node_ranks;
  for (double& wire : levels_wire) wire /= rule;
  std::printf("%zu MiB over %d ranks, %d a node: flat %s ms, two levels %s ms, flat / two levels %s\n", mib,
              place.size, place.node_ranks, to_string(bench::summarize(flat_ms)).c_str(),
              to_string(bench::summarize(levels_ms)).c_str(),
              to_string(bench::summarize_ratio(flat_ms, levels_ms), 2).c_str());
  std::printf(
      "  into a node, two levels: %.0f bytes by the log, (p - k) M / p = %.0f; on the wire %s of that; "
      "flat: on the wire %s of k times that\n",
      logged, rule, to_string(bench::summarize(levels_wire), 3).c_str(),
      to_string(bench::summarize(flat_wire), 3).c_str());
  if (logged != rule) return fail(ErrorCode::internal, "the log does not say what the rule says");
  return {};
}

Result<void> join_and_run(const Place& place, const GlooOptions& options, std::size_t mib, int rounds) {
  std::unique_ptr<StoreServer> store;
  if (place.rank == 0) {
    MUSTER_TRY(UniqueFd listener, listen_for_store(options.store_host, options.store_port));
    MUSTER_TRY(store, start_store(options.store_host, std::move(listener)));
  }
  MUSTER_TRY(auto transport, gloo_transport(options));
  Comm world("world", std::move(transport));
  MUSTER_CHECK(run(place, world, mib, rounds));
  return world.barrier();  // nobody leaves while another still talks
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr,
                 "RANK SIZE NODE_RANKS STORE_HOST STORE_PORT ADDRESS MIB ROUNDS are needed; mics.py "
                 "gives them\n");
    return 2;
  }
  const muster::train::Place place{std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3])};
  const int mib = std::atoi(argv[7]), rounds = std::atoi(argv[8]);
  if (place.size != 2 * place.node_ranks || place.rank < 0 || place.rank >= place.size || mib < 1 ||
      rounds < 1) {
    std::fprintf(stderr, "two nodes of NODE_RANKS ranks are measured, and MIB and ROUNDS are at least 1\n");
    return 2;
  }
  const auto done = muster::train::join_and_run(place,
                                                {.store_host = argv[4],
                                                 .store_port = static_cast<std::uint16_t>(std::atoi(argv[5])),
                                                 .prefix = "bench",
                                                 .address = argv[6],
                                                 .rank = place.rank,
                                                 .size = place.size},
                                                static_cast<std::size_t>(mib), rounds);
  if (done) return 0;
  std::fprintf(stderr, "rank %d: %s\n", place.rank, done.error().message.c_str());
  return 1;
}
