#include "telemetry/logs/log_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/crypto.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "telemetry/logs/stream.h"

namespace muster::telemetry {
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kNameMax = 512;      // of groups and streams, as CloudWatch has it
constexpr std::size_t kFileNameMax = 160;  // of an escaped name; longer ones end in a hash
constexpr char kGroupFile[] = "group.json";
constexpr std::size_t kSequenceSuffix = 1 + 20 + 4;  // ".SEQUENCE.log"
constexpr std::string_view kFirstSegment = ".00000000000000000000.log";

// A name as a file name: escaped, never "." or "..", at most kFileNameMax + 42 bytes. The real name stands in
// the file.
std::string file_name_of(std::string_view name) {
  auto escaped = percent_encode(name);
  if (escaped.starts_with('.')) escaped = "%2E" + escaped.substr(1);
  if (escaped.size() <= kFileNameMax) return escaped;
  return escaped.substr(0, kFileNameMax) + "~" + crypto::hex(crypto::sha256(name)).substr(0, 40);
}

Result<void> check_name(std::string_view what, std::string_view name) {
  if (!name.empty() && name.size() <= kNameMax) return {};
  return fail(ErrorCode::invalid_argument, std::string(what) + " names have 1 to " +
                                               std::to_string(kNameMax) + " bytes; this one has " +
                                               std::to_string(name.size()));
}

struct GroupRecord {
  std::string name;
  Time created;
};

// corrupt: the file is damaged.
Result<GroupRecord> read_group_file(const std::string& path) {
  MUSTER_TRY(const auto text, read_file(path));
  const auto parsed = [&]() -> Result<GroupRecord> {
    MUSTER_TRY(const auto object, json::parse_object(text));
    MUSTER_TRY(auto name, json::get_string(object, "name"));
    MUSTER_TRY(const auto created, json::get_int(object, "created"));
    return GroupRecord{std::move(name), Time{created}};
  }();
  if (!parsed) return fail(ErrorCode::corrupt, path + ": " + parsed.error().message);
  return parsed;
}

Result<void> write_group_file(const std::string& path, const GroupRecord& group) {
  json::Object object;
  object["name"] = group.name;
  object["created"] = group.created.unix_ms;
  return write_file_atomic(path, json::dump(object));
}

// The segments of a folder's streams in order, by prefix. Deletes what a crash has left unfinished.
Result<std::map<std::string, std::vector<std::string>>> find_segments(const std::string& folder) {
  std::map<std::string, std::vector<std::string>> segments;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto path = it->path().string();
    if (path.find(".tmp-", folder.size()) != std::string::npos) {
      ::unlink(path.c_str());  // an unfinished segment of a crash
    } else if (path.ends_with(kFirstSegment) && it->file_size(error) == 0 && !error) {
      ::unlink(path.c_str());  // a crash before the stream was durable
    } else if (path.ends_with(".log") && path.size() > folder.size() + 1 + kSequenceSuffix) {
      segments[path.substr(0, path.size() - kSequenceSuffix)].push_back(path);
    }
  }
  if (error) return fail_errno("list " + folder, error.value());
  for (auto& [prefix, paths] : segments) std::sort(paths.begin(), paths.end());
  return segments;
}

class FileLogStore final : public ports::LogStore {
 public:
  FileLogStore(std::string folder, const LogStoreOptions& options)
      : folder_(std::move(folder)), options_(options) {}

  // Tells what it has set aside.
  Result<std::vector<std::string>> load();
  Result<void> create(std::string_view group, std::string_view stream, Time now) override;
  Result<std::uint64_t> append(std::string_view group, std::string_view stream,
                               std::optional<std::uint64_t> first_sequence,
                               std::span<const ports::LogLine> lines, Time now) override;
  Result<std::vector<ports::LogGroup>> groups(std::string_view prefix) override;
  Result<std::vector<ports::LogStream>> streams(std::string_view group, std::string_view prefix) override;
  Result<ports::LogPage> read(std::string_view group, std::string_view stream,
                              const ports::LogQuery& query) override;
  Result<void> remove(std::string_view group, std::string_view stream) override;

 private:
  using StreamPointer = std::shared_ptr<StreamFile>;
  struct Group {
    std::string folder;
    Time created;
    std::map<std::string, StreamPointer, std::less<>> streams;
  };

  Result<void> load_group(const std::string& folder);
  Result<std::vector<StreamPointer>> load_streams(const std::string& folder, std::string group);
  Result<void> set_aside(const std::vector<std::string>& paths, const std::string& why);
  Result<Group*> group_for_create(std::string_view name, Time now);
  Result<StreamPointer> find(std::string_view group, std::string_view stream);
  Result<std::vector<StreamPointer>> matching(std::string_view group, std::string_view prefix);

  const std::string folder_;
  const LogStoreOptions options_;
  std::vector<std::string> notices_;  // of load()
  // Guards the maps, not the streams. Held over the disk only by create and remove.
  std::shared_mutex mutex_;
  std::map<std::string, Group, std::less<>> groups_;
};

Result<std::vector<std::string>> FileLogStore::load() {
  MUSTER_CHECK(make_directories(folder_));
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory(error)) MUSTER_CHECK(load_group(it->path().string()));
  }
  if (error) return fail_errno("list " + folder_, error.value());
  return std::move(notices_);
}

Result<void> FileLogStore::load_group(const std::string& folder) {
  const auto file = folder + "/" + kGroupFile;
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return {};  // a crash between mkdir and the file: not acknowledged
  auto record = read_group_file(file);
  if (!record && record.error().code != ErrorCode::corrupt) return tl::unexpected(record.error());
  MUSTER_TRY(const auto streams, load_streams(folder, record ? record->name : ""));
  if (!record) {
    MUSTER_CHECK(set_aside({file}, record.error().message));
    if (streams.empty()) return {};
    record = GroupRecord{streams.front()->group(), streams.front()->created()};  // streams know it as well
    MUSTER_CHECK(write_group_file(file, *record));
  }
  auto& group = groups_[record->name];
  group = {.folder = folder, .created = record->created, .streams = {}};
  for (const auto& stream : streams) group.streams.emplace(stream->name(), stream);
  return {};
}

// `group`: whose streams they must be; empty: that of the first.
Result<std::vector<FileLogStore::StreamPointer>> FileLogStore::load_streams(const std::string& folder,
                                                                            std::string group) {
  std::vector<StreamPointer> out;
  MUSTER_TRY(const auto segments, find_segments(folder));
  for (const auto& [prefix, paths] : segments) {
    auto stream = StreamFile::open(prefix, paths, options_.segment_bytes_max);
    if (stream && group.empty()) group = (*stream)->group();
    if (stream && (*stream)->group() != group) {
      stream = fail(ErrorCode::corrupt,
                    prefix + ": a stream of log group " + (*stream)->group() + " in the folder of " + group);
    }
    if (stream) {
      out.push_back(std::move(*stream));
    } else if (stream.error().code == ErrorCode::corrupt) {
      MUSTER_CHECK(set_aside(paths, stream.error().message));
    } else {
      return tl::unexpected(stream.error());
    }
  }
  return out;
}

Result<void> FileLogStore::set_aside(const std::vector<std::string>& paths, const std::string& why) {
  for (const auto& path : paths) {
    if (::rename(path.c_str(), (path + ".damaged").c_str()) != 0) return fail_errno("rename " + path);
  }
  MUSTER_CHECK(sync_directory(fs::path(paths.front()).parent_path().string()));
  notices_.push_back(why + "; set aside as " + paths.front() + ".damaged" +
                     (paths.size() == 1 ? "" : " and " + std::to_string(paths.size() - 1) + " more"));
  return {};
}

// mutex_ held exclusively.
Result<FileLogStore::Group*> FileLogStore::group_for_create(std::string_view name, Time now) {
  if (const auto it = groups_.find(name); it != groups_.end()) return &it->second;
  const auto folder = folder_ + "/" + file_name_of(name);
  MUSTER_CHECK(make_directories(folder));
  MUSTER_CHECK(sync_directory(folder_));
  MUSTER_CHECK(write_group_file(folder + "/" + kGroupFile, {std::string(name), now}));
  return &groups_.emplace(std::string(name), Group{.folder = folder, .created = now, .streams = {}})
              .first->second;
}

Result<void> FileLogStore::create(std::string_view group, std::string_view stream, Time now) {
  MUSTER_CHECK(check_name("log group", group));
  MUSTER_CHECK(check_name("log stream", stream));
  if (find(group, stream)) return {};
  const std::unique_lock lock(mutex_);
  MUSTER_TRY(Group * to, group_for_create(group, now));
  if (to->streams.count(stream) > 0) return {};
  MUSTER_TRY(StreamPointer made,
             StreamFile::create(to->folder + "/" + file_name_of(stream), std::string(group),
                                std::string(stream), now, options_.segment_bytes_max));
  to->streams.emplace(std::string(stream), std::move(made));
  return {};
}

Result<FileLogStore::StreamPointer> FileLogStore::find(std::string_view group, std::string_view stream) {
  const std::shared_lock lock(mutex_);
  const auto g = groups_.find(group);
  if (g == groups_.end())
    return fail(ErrorCode::not_found, "log group " + std::string(group) + " does not exist");
  const auto s = g->second.streams.find(stream);
  if (s == g->second.streams.end()) {
    return fail(ErrorCode::not_found,
                "log stream " + std::string(stream) + " does not exist in " + std::string(group));
  }
  return s->second;
}

Result<std::vector<FileLogStore::StreamPointer>> FileLogStore::matching(std::string_view group,
                                                                        std::string_view prefix) {
  const std::shared_lock lock(mutex_);
  const auto g = groups_.find(group);
  if (g == groups_.end())
    return fail(ErrorCode::not_found, "log group " + std::string(group) + " does not exist");
  std::vector<StreamPointer> out;
  const auto& streams = g->second.streams;
  for (auto it = streams.lower_bound(prefix); it != streams.end() && it->first.starts_with(prefix); ++it) {
    out.push_back(it->second);
  }
  return out;
}

Result<std::uint64_t> FileLogStore::append(std::string_view group, std::string_view stream,
                                           std::optional<std::uint64_t> first_sequence,
                                           std::span<const ports::LogLine> lines, Time now) {
  MUSTER_TRY(const auto found, find(group, stream));
  return found->append(first_sequence, lines, now);
}

Result<ports::LogPage> FileLogStore::read(std::string_view group, std::string_view stream,
                                          const ports::LogQuery& query) {
  MUSTER_TRY(const auto found, find(group, stream));
  return found->read(query);
}

Result<std::vector<ports::LogStream>> FileLogStore::streams(std::string_view group, std::string_view prefix) {
  MUSTER_TRY(const auto found, matching(group, prefix));
  std::vector<ports::LogStream> out;
  for (const auto& stream : found) {
    auto described = stream->describe();
    if (!described && described.error().code == ErrorCode::not_found) continue;  // removed meanwhile
    if (!described) return tl::unexpected(described.error());
    out.push_back(std::move(*described));
  }
  return out;
}

Result<std::vector<ports::LogGroup>> FileLogStore::groups(std::string_view prefix) {
  std::vector<ports::LogGroup> out;
  {
    const std::shared_lock lock(mutex_);
    for (auto it = groups_.lower_bound(prefix); it != groups_.end() && it->first.starts_with(prefix); ++it) {
      out.push_back({.name = it->first, .created = it->second.created, .bytes = 0});
    }
  }
  for (auto& group : out) {
    MUSTER_TRY(const auto found, matching(group.name, ""));
    for (const auto& stream : found) group.bytes += stream->bytes_on_disk();
  }
  return out;
}

Result<void> FileLogStore::remove(std::string_view group, std::string_view stream) {
  const std::unique_lock lock(mutex_);
  const auto g = groups_.find(group);
  if (g == groups_.end()) return {};
  const auto s = g->second.streams.find(stream);
  if (s == g->second.streams.end()) return {};
  MUSTER_CHECK(s->second->remove());
  g->second.streams.erase(s);
  return {};
}

}  // namespace

Result<OpenedLogStore> open_log_store(const std::string& folder, const LogStoreOptions& options) {
  auto store = std::make_unique<FileLogStore>(folder, options);
  auto notices = store->load();
  if (!notices) return tl::unexpected(notices.error().with_context("cannot open the logs in " + folder));
  return OpenedLogStore{std::move(store), std::move(*notices)};
}

}  // namespace muster::telemetry
