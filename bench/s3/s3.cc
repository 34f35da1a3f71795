// Put and get of one large object and of many small ones, with Muster's own S3 client (what `muster cp` and
// the runner use: 8 connections, parts of 16 MiB, every body hashed and checksummed), beside `cp -r` of the
// same files on the same file system, in alternation.
//
//   bench_s3 [ROUNDS [LARGE_MIB [SMALL_COUNT]]]     default 5 1024 1000; small ones have 64 KiB
//
// An acknowledged PUT is on the disk, so its peer is cp and then syncfs; a GET promises nothing about the
// disk, so its peer is cp alone. What is read is in the page cache, having just been written; dirty pages are
// written back (sync) before each measurement, not within it. Client and musterd share the machine.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "base/rng.h"
#include "bench/support/child.h"
#include "bench/support/server.h"
#include "bench/support/summary.h"
#include "data/s3/transfer.h"

namespace muster::bench {
namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

constexpr std::size_t kSmallBytes = 64 << 10;
constexpr auto kBucket = Server::kBucket;

struct Sample {
  std::vector<double> put, cp_durable, get, cp;  // seconds
};

struct Set {
  std::string name;    // "1 object of 1024 MiB"
  std::string folder;  // of the files
  double mib = 0;
  Sample sample;
};

Result<void> write_file(const std::string& path, std::uint64_t bytes, Rng& rng) {
  MUSTER_TRY(const auto file, open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
  std::string block(1 << 20, '\0');
  for (auto& byte : block) byte = static_cast<char>(rng.between(0, 255));
  for (std::uint64_t at = 0; at < bytes;) {
    block[0] = static_cast<char>(at >> 20U);  // no two blocks alike
    const auto count = std::min<std::uint64_t>(block.size(), bytes - at);
    MUSTER_CHECK(write_all(file.get(), std::string_view(block).substr(0, count)));
    at += count;
  }
  return {};
}

Result<void> copy(const std::string& from, const std::string& to, bool durable) {
  MUSTER_TRY(auto cp, Child::start({"cp", "-r", from, to}));
  if (const int code = cp.wait(); code != 0)
    return fail(ErrorCode::io, "cp ended with " + std::to_string(code));
  if (!durable) return {};
  MUSTER_TRY(const auto folder, open_file(to, O_RDONLY | O_DIRECTORY));
  if (::syncfs(folder.get()) != 0) return fail_errno("syncfs");
  return {};
}

// Seconds that `work` takes, from a disk with nothing left to write.
Result<double> timed(const std::function<Result<void>()>& work) {
  ::sync();
  const auto start = Steady::now();
  MUSTER_CHECK(work());
  return std::chrono::duration<double>(Steady::now() - start).count();
}

Result<void> round(data::s3::Client& s3, Set& set, const std::string& scratch, bool counted) {
  const auto to = scratch + "/copy";
  const auto clean = [&] { fs::remove_all(to); };
  const auto put = [&]() -> Result<void> {
    MUSTER_TRY(const auto report, data::s3::upload_tree(s3, set.folder, kBucket, "set/"));
    return report.refused.empty() ? Result<void>{} : tl::unexpected(report.refused.front().second);
  };
  const auto get = [&]() -> Result<void> {
    MUSTER_CHECK(make_directories(to));
    MUSTER_TRY(const auto report, data::s3::download_prefix(s3, kBucket, "set/", to));
    return report.refused.empty() ? Result<void>{} : tl::unexpected(report.refused.front().second);
  };
  MUSTER_TRY(const double cp_durable, timed([&] { return copy(set.folder, to, true); }));
  clean();
  MUSTER_TRY(const double put_took, timed(put));
  MUSTER_TRY(const double cp, timed([&] { return copy(set.folder, to, false); }));
  clean();
  MUSTER_TRY(const double get_took, timed(get));
  clean();
  std::vector<std::string> keys;
  MUSTER_CHECK(s3.list_objects({.bucket = kBucket}, [&](const data::s3::ListPage& page) -> Result<void> {
    for (const auto& object : page.objects) keys.push_back(object.key);
    return {};
  }));
  MUSTER_CHECK(s3.delete_objects(kBucket, keys));
  if (!counted) return {};
  set.sample.put.push_back(put_took);
  set.sample.cp_durable.push_back(cp_durable);
  set.sample.get.push_back(get_took);
  set.sample.cp.push_back(cp);
  return {};
}

void print(const Set& set) {
  const auto rate = [&](std::vector<double> seconds) {
    for (auto& value : seconds) value = set.mib / value;
    return to_string(summarize(std::move(seconds)), 0);
  };
  const auto& sample = set.sample;
  std::printf("%s, %zu rounds, MiB/s, median [quartiles]\n", set.name.c_str(), sample.put.size());
  std::printf("  put %s   cp and sync %s   put / cp %s\n", rate(sample.put).c_str(),
              rate(sample.cp_durable).c_str(),
              to_string(summarize_ratio(sample.cp_durable, sample.put), 2).c_str());
  std::printf("  get %s   cp %s   get / cp %s\n", rate(sample.get).c_str(), rate(sample.cp).c_str(),
              to_string(summarize_ratio(sample.cp, sample.get), 2).c_str());
}

Result<void> measure(int rounds, int large_mib, int small_count) {
  std::printf("%s\n", describe_machine().c_str());
  MUSTER_TRY(const auto server, Server::start(1));
  MUSTER_TRY(const auto s3, server.s3());
  Rng rng(1);
  std::vector<Set> sets(2);
  sets[0].name = "1 object of " + std::to_string(large_mib) + " MiB";
  sets[0].folder = server.folder() + "/large";
  sets[0].mib = large_mib;
  MUSTER_CHECK(make_directories(sets[0].folder));
  MUSTER_CHECK(write_file(sets[0].folder + "/object", static_cast<std::uint64_t>(large_mib) << 20U, rng));
  sets[1].name = std::to_string(small_count) + " objects of 64 KiB";
  sets[1].folder = server.folder() + "/small";
  sets[1].mib = small_count / 16.0;
  MUSTER_CHECK(make_directories(sets[1].folder));
  for (int i = 0; i < small_count; ++i)
    MUSTER_CHECK(write_file(sets[1].folder + "/" + std::to_string(i), kSmallBytes, rng));

  for (auto& set : sets) {
    for (int i = -1; i < rounds; ++i)
      MUSTER_CHECK(round(*s3, set, server.folder(), i >= 0));  // the first is not counted
    print(set);
  }
  return {};
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int rounds = argument(1, 5);
  const int large_mib = argument(2, 1024);
  const int small_count = argument(3, 1000);
  if (argc > 4 || rounds < 1 || large_mib < 1 || small_count < 1) {
    std::fprintf(stderr, "usage: bench_s3 [ROUNDS [LARGE_MIB [SMALL_COUNT]]]\n");
    return 2;
  }
  const auto done = muster::bench::measure(rounds, large_mib, small_count);
  if (!done) std::fprintf(stderr, "bench_s3: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
