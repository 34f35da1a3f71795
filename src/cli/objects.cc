#include "cli/objects.h"

#include <filesystem>
#include <iostream>

#include "base/s3_uri.h"
#include "base/text.h"
#include "cli/output.h"
#include "data/s3/transfer.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using data::s3::Place;
using data::s3::Report;

template <typename Options>
Options with_progress() {
  Options options;
  if (is_terminal()) {
    options.progress = [](const data::s3::Progress& progress) {
      std::cout << "\r\033[K" << progress.files << "/" << progress.files_total << " files  "
                << format_bytes(progress.bytes) << " of " << format_bytes(progress.bytes_total) << std::flush;
    };
  }
  return options;
}

int print_report(const Common& common, const Result<Report>& report, const std::string& from,
                 const std::string& to) {
  if (is_terminal()) std::cout << "\r\033[K";
  if (!report) return print_error(report.error());
  for (const auto& [path, why] : report->refused)
    std::cerr << "muster: left out " << path << ": " << why.message << "\n";
  if (common.as_json) {
    json::Object out;
    out["files"] = report->files;
    out["bytes"] = report->bytes;
    print_json(out);
  } else {
    std::cout << from << " -> " << to << "  " << report->files
              << (report->files == 1 ? " file, " : " files, ") << format_bytes(report->bytes) << "\n";
  }
  return report->refused.empty() ? kOk : kFailed;
}

Result<Report> upload(data::s3::Client& s3, const std::string& from, const Place& to, bool recursive) {
  if (!fs::exists(from)) return fail(ErrorCode::invalid_argument, "there is no file " + from);
  if (fs::is_directory(from)) {
    if (!recursive) return fail(ErrorCode::invalid_argument, from + " is a folder; copy it with -r");
    return data::s3::upload_tree(s3, from, to.bucket, to.key, with_progress<data::s3::UploadOptions>());
  }
  if (!fs::is_regular_file(from)) {
    return fail(ErrorCode::invalid_argument,
                from + " is neither a file nor a folder; copy its content to a file first");
  }
  auto place = to;
  if (place.key.empty() || place.key.back() == '/') place.key += fs::path(from).filename().string();
  const auto bytes = fs::file_size(from);
  MUSTER_TRY(const auto etag,
             data::s3::upload_file(s3, from, place, with_progress<data::s3::TransferOptions>()));
  return Report{1, bytes, {}};
}

Result<Report> download(data::s3::Client& s3, const Place& from, const std::string& to, bool recursive) {
  if (recursive) {
    return data::s3::download_prefix(s3, from.bucket, from.key, to,
                                     with_progress<data::s3::TransferOptions>());
  }
  if (from.key.empty() || from.key.back() == '/') {
    return fail(ErrorCode::invalid_argument,
                "s3://" + from.bucket + "/" + from.key + " is a prefix; copy it with -r");
  }
  auto path = to;
  if (fs::is_directory(to)) path = (fs::path(to) / fs::path(from.key).filename()).string();
  MUSTER_TRY(const auto info,
             data::s3::download_file(s3, from, path, with_progress<data::s3::TransferOptions>()));
  return Report{1, info.size, {}};
}

// "s3://data" or "data".
Result<Place> parse_bucket(const std::string& text) {
  MUSTER_TRY(auto place, parse_s3_uri(is_s3_uri(text) ? text : "s3://" + text));
  if (place.key.empty()) return place;
  return fail(ErrorCode::invalid_argument, text + " names an object: give s3://BUCKET");
}

}  // namespace

Result<std::uint64_t> remove_prefix(data::s3::Client& s3, const Place& place) {
  std::uint64_t removed = 0;
  data::s3::ListRequest request;
  request.bucket = place.bucket;
  request.prefix = place.key;
  MUSTER_CHECK(s3.list_objects(request, [&](const data::s3::ListPage& page) -> Result<void> {
    std::vector<std::string> keys;
    for (const auto& object : page.objects) keys.push_back(object.key);
    if (keys.empty()) return {};
    MUSTER_TRY(const auto kept, s3.delete_objects(place.bucket, keys));
    if (!kept.empty()) return tl::unexpected(kept.front().second.with_context(kept.front().first));
    removed += keys.size();
    return {};
  }));
  return removed;
}

int copy_objects(const Common& common, const std::string& from, const std::string& to, bool recursive) {
  if (is_s3_uri(from) == is_s3_uri(to)) {
    return print_error(
        {ErrorCode::invalid_argument, "one of the two must be s3://BUCKET/KEY, the other a local path"});
  }
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  const auto place = parse_s3_uri(is_s3_uri(from) ? from : to);
  if (!place) return print_error(place.error());
  if (is_s3_uri(from) && to == "-") {
    const auto got = session->s3->get_object(*place, {}, [](std::string_view piece) -> Result<void> {
      std::cout << piece;
      return {};
    });
    return got ? static_cast<int>(kOk) : print_error(got.error());
  }
  const auto report = is_s3_uri(from) ? download(*session->s3, *place, to, recursive)
                                      : upload(*session->s3, from, *place, recursive);
  return print_report(common, report, from, to);
}

int list_objects(const Common& common, const std::string& uri, bool recursive) {
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  json::Array rows;
  Table table({"SIZE", "MODIFIED", "NAME"});
  const auto add = [&](const std::string& size, std::optional<Time> modified, const std::string& name,
                       std::uint64_t bytes) {
    json::Object row;
    row["name"] = name;
    row["bytes"] = bytes;
    rows.emplace_back(std::move(row));
    table.add({size, modified ? local_time(modified->unix_seconds()) : "", name});
  };
  if (uri.empty()) {
    const auto buckets = session->s3->list_buckets();
    if (!buckets) return print_error(buckets.error());
    for (const auto& bucket : *buckets) add("", bucket.created, "s3://" + bucket.name, 0);
  } else {
    const auto place = parse_s3_uri(uri);
    if (!place) return print_error(place.error());
    data::s3::ListRequest request;
    request.bucket = place->bucket;
    request.prefix = place->key;
    if (!recursive) request.delimiter = "/";
    const auto base = "s3://" + place->bucket + "/";
    const auto listed =
        session->s3->list_objects(request, [&](const data::s3::ListPage& page) -> Result<void> {
          for (const auto& prefix : page.common_prefixes) add("", std::nullopt, base + prefix, 0);
          for (const auto& object : page.objects)
            add(format_bytes(object.size), object.modified, base + object.key, object.size);
          return {};
        });
    if (!listed) return print_error(listed.error());
  }
  if (common.as_json) {
    json::Object out;
    out["entries"] = std::move(rows);
    print_json(out);
  } else if (!rows.empty()) {
    std::cout << table.text();
  } else {
    std::cout << (uri.empty() ? "No buckets. Make one with: muster mb s3://NAME" : "Nothing below " + uri)
              << "\n";
  }
  return kOk;
}

int remove_objects(const Common& common, const std::string& uri, bool recursive) {
  const auto place = parse_s3_uri(uri);
  if (!place) return print_error(place.error());
  if (place->key.empty() && !recursive) {
    return print_error({ErrorCode::invalid_argument,
                        uri +
                            " names a bucket: add a key, or -r to remove everything in it; the bucket "
                            "itself is removed by: " +
                            command_of(common.data) + " rb s3://" + place->bucket});
  }
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  std::uint64_t removed = 0;
  if (!recursive) {
    const auto there = session->s3->head_object(*place);
    if (!there) return print_error(there.error());
    if (auto done = session->s3->delete_object(*place); !done) return print_error(done.error());
    removed = 1;
  } else {
    const auto done = remove_prefix(*session->s3, *place);
    if (!done) return print_error(done.error());
    removed = *done;
  }
  if (common.as_json) {
    json::Object out;
    out["removed"] = removed;
    print_json(out);
  } else {
    std::cout << "Removed " << removed << (removed == 1 ? " object\n" : " objects\n");
  }
  return kOk;
}

int make_bucket(const Common& common, const std::string& uri) {
  const auto place = parse_bucket(uri);
  if (!place) return print_error(place.error());
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  if (auto made = session->s3->create_bucket(place->bucket); !made) return print_error(made.error());
  if (common.as_json) {
    print_json({});
  } else {
    std::cout << "Made s3://" << place->bucket << "\n";
  }
  return kOk;
}

int remove_bucket(const Common& common, const std::string& uri, bool force) {
  const auto place = parse_bucket(uri);
  if (!place) return print_error(place.error());
  auto session = open_session(common);
  if (!session) return print_error(session.error());
  std::uint64_t removed = 0;
  if (force) {
    const auto done = remove_prefix(*session->s3, *place);
    if (!done) return print_error(done.error());
    removed = *done;
  }
  if (auto done = session->s3->delete_bucket(place->bucket); !done) {
    const bool full = done.error().code == ErrorCode::failed_precondition;
    return print_error(full
                           ? Error{ErrorCode::failed_precondition,
                                   "s3://" + place->bucket + " is not empty; --force removes its objects too"}
                           : done.error());
  }
  if (common.as_json) {
    json::Object out;
    out["removed"] = removed;
    print_json(out);
  } else {
    std::cout << "Removed s3://" << place->bucket;
    if (removed > 0) std::cout << " and its " << removed << (removed == 1 ? " object" : " objects");
    std::cout << "\n";
  }
  return kOk;
}

}  // namespace muster::cli
