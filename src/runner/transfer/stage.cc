#include "runner/transfer/stage.h"

#include <sys/statvfs.h>

#include <map>
#include <numeric>

#include "base/file.h"
#include "base/text.h"

namespace muster::runner {
namespace {

std::uint64_t total_bytes(const std::vector<Download>& downloads) {
  return std::accumulate(downloads.begin(), downloads.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Download& d) { return sum + d.object.bytes; });
}

std::optional<std::uint64_t> free_bytes(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

Error disk_full(const std::string& folder, std::uint64_t needed, std::uint64_t free) {
  return Error{ErrorCode::no_space, "the node's disk is full: " + folder + " needs " + format_bytes(needed) +
                                        ", " + format_bytes(free) + " are free"};
}

Result<Transferred> download_all(Objects& objects, const std::string& bucket,
                                 const std::vector<Download>& downloads, const std::string& folder,
                                 std::stop_token stop) {
  MUSTER_CHECK(make_directories(folder));
  const auto needed = total_bytes(downloads);
  const auto free = free_bytes(folder);
  if (free && needed > *free) return tl::unexpected(disk_full(folder, needed, *free));
  auto done = objects.download(bucket, downloads, folder, stop);
  if (!done) {
    if (done.error().code != ErrorCode::no_space) return tl::unexpected(done.error());
    return tl::unexpected(disk_full(folder, needed, free_bytes(folder).value_or(0)));
  }
  return Transferred{downloads.size(), needed};
}

Result<std::vector<Download>> plan(Objects& objects, const S3Location& from,
                                   domain::Distribution distribution, int rank, int world, bool* nothing) {
  MUSTER_TRY(const auto all, objects.list(from));
  *nothing = all.empty();
  std::map<std::string, Download> by_key;
  std::vector<std::string> keys;
  for (const auto& object : all) {
    MUSTER_TRY(auto name, local_name(from.key, object.key));
    if (name.empty()) continue;  // a folder marker
    keys.push_back(object.key);
    by_key[object.key] = {object, std::move(name)};
  }
  std::vector<Download> out;
  for (const auto& key : share_of(std::move(keys), distribution, rank, world)) {
    out.push_back(std::move(by_key[key]));
  }
  return out;
}

}  // namespace

std::string describe(const Transferred& amount) {
  return format_bytes(amount.bytes) + " in " + std::to_string(amount.files) +
         (amount.files == 1 ? " file" : " files");
}

Result<Transferred> stage_channel(Objects& objects, const domain::Channel& channel, int rank, int world,
                                  const std::string& folder, std::stop_token stop) {
  const auto stage = [&]() -> Result<Transferred> {
    MUSTER_TRY(const auto from, parse_s3_uri(channel.s3_uri));
    bool nothing = false;
    MUSTER_TRY(const auto downloads, plan(objects, from, channel.distribution, rank, world, &nothing));
    if (nothing) return fail(ErrorCode::not_found, "no object under " + channel.s3_uri);
    return download_all(objects, from.bucket, downloads, folder, stop);
  };
  auto staged = stage();
  if (!staged) return tl::unexpected(staged.error().with_context("channel \"" + channel.name + "\""));
  return staged;
}

Result<Transferred> download_tree(Objects& objects, const S3Location& from, const std::string& folder,
                                  std::stop_token stop) {
  bool nothing = false;
  MUSTER_TRY(const auto downloads,
             plan(objects, from, domain::Distribution::fully_replicated, 0, 1, &nothing));
  return download_all(objects, from.bucket, downloads, folder, stop);
}

}  // namespace muster::runner
