#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/text.h"
#include "data/s3/detail/beneath.h"
#include "data/s3/detail/verify.h"
#include "data/s3/detail/workers.h"
#include "data/s3/transfer.h"

namespace muster::data::s3 {

Result<void> check_relative_path(std::string_view path) {
  const auto bad = [&](std::string_view why) {
    std::string shown;
    for (const char c : path.substr(0, 200)) shown += c == '\0' ? std::string("\\0") : std::string(1, c);
    return fail(ErrorCode::invalid_argument,
                "\"" + shown + "\" cannot be a file below a folder: " + std::string(why));
  };
  if (path.find('\0') != std::string_view::npos) return bad("it holds a NUL byte");
  if (path.ends_with('/')) path.remove_suffix(1);
  for (const auto part : split(path, '/')) {
    if (part.empty()) return bad("it has an empty component");
    if (part == "." || part == "..") return bad("it has a component \"" + std::string(part) + "\"");
    if (part.size() > 255)
      return bad("it has a component of " + std::to_string(part.size()) + " bytes, 255 are possible");
    if (part.starts_with(detail::kTemporaryPrefix))
      return bad("names in " + std::string(part) + " are for temporary files");
  }
  return {};
}

namespace {

using detail::Folder;
using detail::NewFile;

// A large file in the making: ranges arrive from several threads in any order.
struct Assembly {
  std::mutex mutex;
  std::optional<NewFile> file;
  std::atomic<std::size_t> ranges_left{0};
  std::atomic<bool> changed{false};  // the object was replaced meanwhile
  detail::ReceivedRuns runs;         // one a range, each written by the thread that receives it
};

class Downloader {
 public:
  Downloader(Client& client, const std::string& bucket, const std::vector<const Download*>& items,
             const Folder& folder, const TransferOptions& options)
      : client_(client),
        bucket_(bucket),
        items_(items),
        folder_(folder),
        options_(options),
        meter_(options, items.size(), total(items)) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto size = items[i]->object.size;
      const auto ranges =
          size <= options.part_bytes ? 1 : (size + options.part_bytes - 1) / options.part_bytes;
      if (ranges > 1) {
        assemblies_[i] = std::make_unique<Assembly>();
        assemblies_[i]->ranges_left = ranges;
        assemblies_[i]->runs = {options.part_bytes, std::vector<std::string>(ranges)};
      }
      for (std::uint64_t r = 0; r < ranges; ++r) tasks_.push_back({i, r});
    }
  }

  Result<void> run() {
    MUSTER_CHECK(
        detail::run_tasks(tasks_.size(), options_.parallel, options_.stop, [this](std::size_t index) {
          const auto [item, range] = tasks_[index];
          const auto found = assemblies_.find(item);
          auto done = found == assemblies_.end() ? whole(*items_[item])
                                                 : one_range(*items_[item], *found->second, range);
          if (!done) {
            return Result<void>(
                tl::unexpected(done.error().with_context("cannot download " + name_of(*items_[item]))));
          }
          return done;
        }));
    meter_.finish();
    return {};
  }

 private:
  struct Task {
    std::size_t item;
    std::uint64_t range;
  };

  static std::uint64_t total(const std::vector<const Download*>& items) {
    std::uint64_t bytes = 0;
    for (const auto* item : items) bytes += item->object.size;
    return bytes;
  }
  Place place_of(const Download& item) const { return {bucket_, item.object.key}; }
  std::string name_of(const Download& item) const { return to_string(place_of(item)); }

  Client::Sink into(NewFile& file, std::uint64_t& at) {
    return [this, &file, &at](std::string_view piece) -> Result<void> {
      if (options_.stop != nullptr && *options_.stop)
        return fail(ErrorCode::cancelled, "the transfer was stopped");
      MUSTER_CHECK(file.write_at(piece, at));
      at += piece.size();
      meter_.add_bytes(piece.size());
      return {};
    };
  }

  // One GET: whatever version it meets, the file is that version.
  Result<void> whole(const Download& item) {
    if (item.path.ends_with('/')) {
      MUSTER_CHECK(folder_.make_folder(item.path.substr(0, item.path.size() - 1)));
      meter_.add_file();
      return {};
    }
    MUSTER_TRY(auto file, folder_.create(item.path));
    MUSTER_CHECK(file.reserve(item.object.size));
    std::uint64_t at = 0;
    MUSTER_TRY(const auto got, client_.get_object(place_of(item), {}, into(file, at)));
    if (at != got.info.size) return short_of(at, got.info.size);
    MUSTER_CHECK(file.truncate(at));  // it may be shorter than when it was listed
    MUSTER_CHECK(file.commit());
    meter_.add_file();
    return {};
  }

  static tl::unexpected<Error> short_of(std::uint64_t got, std::uint64_t expected) {
    return fail(ErrorCode::corrupt, "got " + std::to_string(got) + " bytes of " + std::to_string(expected));
  }

  Result<void> one_range(const Download& item, Assembly& assembly, std::uint64_t number) {
    {
      const std::lock_guard lock(assembly.mutex);
      if (!assembly.file) {
        MUSTER_TRY(auto file, folder_.create(item.path));
        MUSTER_CHECK(file.reserve(item.object.size));
        assembly.file.emplace(std::move(file));
      }
    }
    if (!assembly.changed) {
      const auto fetched =
          fetch_range(item, *assembly.file, item.object, number, &assembly.runs.crc32c[number]);
      if (!fetched && fetched.error().code == ErrorCode::failed_precondition) {
        assembly.changed = true;
      } else if (!fetched) {
        return fetched;
      }
    }
    if (--assembly.ranges_left > 0) return {};
    auto& file = *assembly.file;
    if (!assembly.changed) {
      const auto verified =
          detail::verify_file(client_, place_of(item), item.object, file.fd(), assembly.runs);
      if (!verified && verified.error().code != ErrorCode::failed_precondition) return verified;
      assembly.changed = !verified;
    }
    if (assembly.changed) MUSTER_CHECK(fetch_again(item, file));
    MUSTER_CHECK(file.commit());
    meter_.add_file();
    return {};
  }

  // crc32c, if asked for: of the bytes received, while they are still in the processor's cache.
  Result<void> fetch_range(const Download& item, NewFile& file, const ObjectInfo& version,
                           std::uint64_t number, std::string* crc32c = nullptr) {
    const auto first = number * options_.part_bytes;
    const auto length = std::min(options_.part_bytes, version.size - first);
    std::uint64_t at = first;
    crypto::Hasher hasher(crypto::Digest::crc32c);
    const auto write = into(file, at);
    const auto take = [&](std::string_view piece) {
      if (crc32c != nullptr) hasher.update(piece);
      return write(piece);
    };
    MUSTER_CHECK(client_.get_object(place_of(item), {ByteRange{first, length}, version.etag}, take));
    if (at != first + length) return short_of(at - first, length);
    if (crc32c != nullptr) *crc32c = hasher.finish();
    return {};
  }

  // The object was replaced while its ranges came: all of the new version, on this thread.
  Result<void> fetch_again(const Download& item, NewFile& file) {
    for (int round = 0;; ++round) {
      MUSTER_TRY(const auto version, client_.head_object(place_of(item)));
      MUSTER_CHECK(file.truncate(version.size));
      Result<void> fetched;
      for (std::uint64_t number = 0; fetched && number * options_.part_bytes < version.size; ++number) {
        fetched = fetch_range(item, file, version, number);
      }
      if (fetched) fetched = detail::verify_file(client_, place_of(item), version, file.fd());
      if (fetched) return {};
      if (fetched.error().code != ErrorCode::failed_precondition || round == 3) return fetched;
    }
  }

  Client& client_;
  const std::string& bucket_;
  const std::vector<const Download*>& items_;
  const Folder& folder_;
  const TransferOptions& options_;
  detail::Meter meter_;
  std::map<std::size_t, std::unique_ptr<Assembly>> assemblies_;
  std::vector<Task> tasks_;
};

// Those that can be files side by side, in order; the rest goes to `refused`. A path that is a file and also
// a folder on the way to another one cannot be both: the file is refused.
std::vector<const Download*> possible(const std::vector<Download>& downloads, Report& report) {
  std::set<std::string_view> folders;
  for (const auto& item : downloads) {
    if (!check_relative_path(item.path)) continue;
    for (auto slash = item.path.find('/'); slash != std::string::npos;
         slash = item.path.find('/', slash + 1)) {
      folders.insert(std::string_view(item.path).substr(0, slash));
    }
  }
  std::vector<const Download*> items;
  std::set<std::string_view> files;
  for (const auto& item : downloads) {
    auto checked = check_relative_path(item.path);
    if (checked && folders.count(item.path) > 0) {
      checked = fail(ErrorCode::already_exists,
                     "\"" + item.path + "\" is both an object and the folder of others; rename one");
    }
    if (checked && !item.path.ends_with('/') && !files.insert(item.path).second) {
      checked = fail(ErrorCode::already_exists, "\"" + item.path + "\" is the path of two objects");
    }
    if (checked) {
      items.push_back(&item);
    } else {
      report.refused.emplace_back(item.object.key, checked.error());
    }
  }
  return items;
}

// The file that `path` means, links followed as cp does; it need not be there yet.
Result<std::string> file_meant(const std::string& path) {
  namespace fs = std::filesystem;
  struct stat there {};
  std::error_code why;
  const bool link = fs::is_symlink(fs::symlink_status(path, why));
  if (::stat(path.c_str(), &there) != 0) {
    if (!link) return path;
    return fail_errno("follow the link \"" + path + "\" to " + fs::read_symlink(path, why).string());
  }
  MUSTER_CHECK(detail::check_replaceable(there.st_mode, path));
  if (!link) return path;
  const auto real = fs::canonical(path, why);
  if (why) return fail_errno("follow the link \"" + path + "\"", why.value());
  return real.string();
}

}  // namespace

Result<Report> download_objects(Client& client, const std::string& bucket,
                                const std::vector<Download>& downloads, const std::string& root,
                                const TransferOptions& options) {
  MUSTER_TRY(const auto folder, Folder::open(root));
  Report report;
  const auto items = possible(downloads, report);
  MUSTER_CHECK(Downloader(client, bucket, items, folder, options).run());
  for (const auto* item : items) {
    report.files += item->path.ends_with('/') ? 0 : 1;
    report.bytes += item->object.size;
  }
  return report;
}

Result<Report> download_prefix(Client& client, const std::string& bucket, const std::string& prefix,
                               const std::string& root, const TransferOptions& options) {
  std::vector<Download> downloads;
  const bool folder = prefix.empty() || prefix.ends_with('/');
  MUSTER_CHECK(client.list_objects({.bucket = bucket, .prefix = prefix}, [&](ListPage page) -> Result<void> {
    for (auto& object : page.objects) {
      auto rest = object.key.substr(prefix.size());
      if (!folder && rest.empty()) {
        rest = object.key.substr(object.key.rfind('/') + 1);
      } else if (!folder && rest[0] == '/') {
        rest.erase(0, 1);
      } else if (!folder) {
        continue;  // "run-10" is not below "run-1"
      }
      if (!rest.empty()) downloads.push_back({std::move(object), std::move(rest)});
    }
    return {};
  }));
  return download_objects(client, bucket, downloads, root, options);
}

Result<ObjectInfo> download_file(Client& client, const Place& place, const std::string& given,
                                 const TransferOptions& options) {
  MUSTER_TRY(const auto path, file_meant(given));
  const auto slash = path.rfind('/');
  const auto name = slash == std::string::npos ? path : path.substr(slash + 1);
  MUSTER_TRY(auto info, client.head_object(place));
  info.key = place.key;
  const auto root = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  MUSTER_TRY(const auto report, download_objects(client, place.bucket, {{info, name}}, root, options));
  if (!report.refused.empty()) return tl::unexpected(report.refused.front().second);
  return info;
}

}  // namespace muster::data::s3
