#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/text.h"
#include "data/s3/detail/beneath.h"
#include "data/s3/detail/workers.h"
#include "data/s3/transfer.h"

namespace muster::data::s3 {
namespace {

constexpr std::uint64_t kPartsMax = 10'000;
constexpr std::uint64_t kPartMin = 5 << 20;
constexpr std::size_t kKeyMax = 1024;

struct Source {
  std::shared_ptr<const UniqueFd> fd;
  std::uint64_t size = 0;
  timespec modified{};
};

Result<Source> open_source(const std::string& path) {
  MUSTER_TRY(auto fd, open_file(path, O_RDONLY));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("stat " + path);
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::invalid_argument, path + " is not a regular file");
  return Source{std::make_shared<const UniqueFd>(std::move(fd)), static_cast<std::uint64_t>(info.st_size),
                info.st_mtim};
}

// A file written to while it goes up would be a mix of two.
Result<void> check_unchanged(const std::string& path, const Source& source) {
  struct stat info {};
  if (::fstat(source.fd->get(), &info) != 0) return fail_errno("stat " + path);
  if (static_cast<std::uint64_t>(info.st_size) != source.size ||
      info.st_mtim.tv_sec != source.modified.tv_sec || info.st_mtim.tv_nsec != source.modified.tv_nsec) {
    return fail(ErrorCode::failed_precondition,
                path + " changed while it was uploaded; upload it when it is settled");
  }
  return {};
}

std::uint64_t part_size(std::uint64_t size, std::uint64_t wanted) {
  const auto least = (size + kPartsMax - 1) / kPartsMax;
  const auto part = std::max({wanted, least, kPartMin});
  constexpr std::uint64_t kMebi = 1 << 20;
  return (part + kMebi - 1) / kMebi * kMebi;
}

Result<std::string> upload_parts(Client& client, const std::string& path, const Source& source,
                                 const Place& place, const std::string& upload_id,
                                 const TransferOptions& options, detail::Meter& meter) {
  const auto each = part_size(source.size, options.part_bytes);
  const auto count = static_cast<std::size_t>((source.size + each - 1) / each);
  std::vector<Part> parts(count);
  MUSTER_CHECK(detail::run_tasks(count, options.parallel, options.stop, [&](std::size_t i) -> Result<void> {
    const auto offset = i * each;
    const auto length = std::min(each, source.size - offset);
    MUSTER_TRY(parts[i], client.upload_part(place, upload_id, static_cast<int>(i) + 1,
                                            net::FileRange{source.fd, offset, length}));
    meter.add_bytes(length);
    return {};
  }));
  MUSTER_CHECK(check_unchanged(path, source));
  return client.complete_upload(place, upload_id, parts);
}

Result<std::string> upload_one(Client& client, const std::string& path, const Place& place,
                               const TransferOptions& options, const PutOptions& put, detail::Meter& meter) {
  MUSTER_TRY(const auto source, open_source(path));
  if (source.size <= std::max(options.part_bytes, kPartMin)) {
    MUSTER_TRY(auto etag, client.put_object(place, net::FileRange{source.fd, 0, source.size}, put));
    MUSTER_CHECK(check_unchanged(path, source));
    meter.add_bytes(source.size);
    return etag;
  }
  MUSTER_TRY(const auto upload_id, client.create_upload(place, put));
  auto etag = upload_parts(client, path, source, place, upload_id, options, meter);
  // Parts of an upload that is never completed would stay and cost room. Where this cannot be sent either
  // (the client is cancelled, the service away), `muster prune` removes them.
  if (!etag) (void)client.abort_upload(place, upload_id);
  return etag;
}

struct Found {
  std::string path;      // whole
  std::string relative;  // below the folder
  std::uint64_t size = 0;
};

// All regular files, sorted by path; what is left out goes to `report`.
Result<std::vector<Found>> files_below(const std::string& folder, const UploadOptions& options,
                                       const std::string& prefix, Report& report) {
  namespace fs = std::filesystem;
  std::vector<Found> found;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  if (error) return fail_errno("read folder " + folder, error.value());
  for (; walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    const auto& path = walk->path();
    const auto relative = path.lexically_relative(folder).string();
    std::error_code ignored;
    if (walk->is_directory(ignored) && !walk->is_symlink(ignored)) continue;
    if (path.filename().string().starts_with(detail::kTemporaryPrefix)) continue;
    if (options.wanted && !options.wanted(relative)) continue;
    const auto refuse = [&](ErrorCode code, std::string why) {
      report.refused.emplace_back(relative, Error{code, relative + " is not uploaded: " + std::move(why)});
    };
    if (!walk->is_regular_file(ignored)) {
      refuse(ErrorCode::unsupported,
             walk->is_symlink(ignored) ? "a link to nothing or to a folder" : "not a regular file");
      continue;
    }
    if (!is_utf8(relative)) {
      refuse(ErrorCode::invalid_argument, "its name is not UTF-8, as keys must be");
    } else if (prefix.size() + relative.size() > kKeyMax) {
      refuse(ErrorCode::invalid_argument, "its key would have " +
                                              std::to_string(prefix.size() + relative.size()) +
                                              " bytes, at most 1024 are possible");
    } else {
      found.push_back({path.string(), relative, walk->file_size(ignored)});
    }
  }
  if (error) return fail_errno("read folder " + folder, error.value());
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.relative < b.relative; });
  return found;
}

}  // namespace

Result<std::string> upload_file(Client& client, const std::string& path, const Place& place,
                                const TransferOptions& options, const PutOptions& put) {
  MUSTER_TRY(const auto source, open_source(path));
  detail::Meter meter(options, 1, source.size);
  auto etag = upload_one(client, path, place, options, put, meter);
  if (!etag) return tl::unexpected(etag.error().with_context("cannot upload " + path));
  meter.add_file();
  meter.finish();
  return etag;
}

Result<Report> upload_tree(Client& client, const std::string& folder, const std::string& bucket,
                           const std::string& prefix, const UploadOptions& options) {
  Report report;
  const auto base = prefix.empty() || prefix.ends_with('/') ? prefix : prefix + "/";
  MUSTER_TRY(const auto found, files_below(folder, options, base, report));
  std::vector<const Found*> small;
  std::vector<const Found*> large;  // one after another, each with all threads for its parts
  for (const auto& file : found) {
    (file.size > std::max(options.part_bytes, kPartMin) ? large : small).push_back(&file);
    report.bytes += file.size;
  }
  detail::Meter meter(options, found.size(), report.bytes);
  const auto upload = [&](const Found& file) -> Result<void> {
    const auto etag = upload_one(client, file.path, {bucket, base + file.relative}, options, {}, meter);
    if (!etag) return tl::unexpected(etag.error().with_context("cannot upload " + file.path));
    meter.add_file();
    return {};
  };
  MUSTER_CHECK(detail::run_tasks(small.size(), options.parallel, options.stop,
                                 [&](std::size_t i) { return upload(*small[i]); }));
  for (const auto* file : large) MUSTER_CHECK(upload(*file));
  meter.finish();
  report.files = found.size();
  return report;
}

}  // namespace muster::data::s3
