#include "data/objectstore/detail/catalog.h"

#include <algorithm>

namespace muster::objectstore {
namespace {

constexpr std::int64_t kFormat = 1;

constexpr std::string_view kSchema = R"sql(
CREATE TABLE bucket(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, region TEXT NOT NULL, created INTEGER NOT NULL);
CREATE TABLE blob(
  id INTEGER PRIMARY KEY, users INTEGER NOT NULL, size INTEGER NOT NULL, pieces BLOB);
CREATE INDEX dead_blob ON blob(id) WHERE users = 0;
CREATE TABLE object(
  bucket INTEGER NOT NULL, key BLOB NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL,
  etag TEXT NOT NULL, blob INTEGER NOT NULL, extra BLOB NOT NULL, PRIMARY KEY(bucket, key)) WITHOUT ROWID;
CREATE TABLE upload(
  id TEXT PRIMARY KEY, bucket INTEGER NOT NULL, key BLOB NOT NULL, created INTEGER NOT NULL,
  extra BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX upload_by_key ON upload(bucket, key, id);
CREATE TABLE part(
  upload TEXT NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL,
  etag TEXT NOT NULL, checksum BLOB NOT NULL, blob INTEGER NOT NULL, PRIMARY KEY(upload, number)) WITHOUT ROWID;
PRAGMA user_version = 1;
)sql";

// Above every UTF-8 string that begins with `prefix`: UTF-8 has no byte 0xff.
std::string end_of(std::string_view prefix) { return std::string(prefix) + '\xff'; }

// `key` up to and with the first delimiter behind the prefix, or empty.
std::string_view rolled_up(std::string_view key, const ports::ListQuery& query) {
  if (query.delimiter.empty()) return {};
  const auto at = key.find(query.delimiter, query.prefix.size());
  return at == std::string_view::npos ? std::string_view{} : key.substr(0, at + query.delimiter.size());
}

// The smallest key that the list may show.
std::string first_wanted(const ports::ListQuery& query) {
  std::string lower = query.prefix;
  if (query.after.empty()) return lower;
  if (query.after.compare(0, query.prefix.size(), query.prefix) == 0 &&
      rolled_up(query.after, query) == query.after) {
    return end_of(query.after);  // a common prefix was seen: so were all keys below it
  }
  return std::max(lower, query.after + '\0');
}

}  // namespace

Result<Catalog> Catalog::open_writer(const std::string& path, bool sync) {
  MUSTER_TRY(auto database, sqlite::Database::open(path, {.create = true, .full_sync = sync}));
  Catalog catalog(std::move(database));
  std::int64_t format = 0;
  {
    MUSTER_TRY(auto version, catalog.database_.prepare("PRAGMA user_version"));
    MUSTER_CHECK(version.step());
    format = version.integer(0);
  }
  if (format > kFormat) {
    return fail(ErrorCode::unsupported, path + " has format " + std::to_string(format) +
                                            ", this program knows " + std::to_string(kFormat) +
                                            ": start a newer musterd on it");
  }
  if (format == 0) {
    MUSTER_TRY(auto transaction, catalog.begin());
    MUSTER_CHECK(catalog.database_.execute(kSchema));
    MUSTER_CHECK(transaction.commit());
  }
  return catalog;
}

Result<Catalog> Catalog::open_reader(const std::string& path) {
  MUSTER_TRY(auto database, sqlite::Database::open(path, {.create = false, .read_only = true}));
  return Catalog(std::move(database));
}

Result<Catalog::Use> Catalog::use(std::string_view sql) {
  auto at = statements_.find(sql);
  if (at == statements_.end()) {
    MUSTER_TRY(auto statement, database_.prepare(sql));
    at = statements_.emplace(sql, std::move(statement)).first;
  }
  return Use(at->second);
}

Result<std::optional<BucketRow>> Catalog::bucket(std::string_view name) {
  MUSTER_TRY(auto row, use("SELECT id, name, region, created FROM bucket WHERE name = ?"));
  row->bind(1, name);
  MUSTER_TRY(const bool found, row->step());
  if (!found) return std::nullopt;
  return BucketRow{.id = row->integer(0),
                   .bucket = {.name = std::string(row->text(1)),
                              .region = std::string(row->text(2)),
                              .created = Time{row->integer(3)}}};
}

Result<std::vector<BucketRow>> Catalog::buckets() {
  MUSTER_TRY(auto row, use("SELECT id, name, region, created FROM bucket ORDER BY name"));
  std::vector<BucketRow> out;
  for (;;) {
    MUSTER_TRY(const bool found, row->step());
    if (!found) return out;
    out.push_back({.id = row->integer(0),
                   .bucket = {.name = std::string(row->text(1)),
                              .region = std::string(row->text(2)),
                              .created = Time{row->integer(3)}}});
  }
}

Result<bool> Catalog::bucket_empty(std::int64_t bucket) {
  MUSTER_TRY(auto row, use("SELECT 1 FROM object WHERE bucket = ? LIMIT 1"));
  row->bind(1, bucket);
  MUSTER_TRY(const bool found, row->step());
  return !found;
}

Result<std::optional<ObjectRow>> Catalog::object(std::int64_t bucket, std::string_view key) {
  MUSTER_TRY(auto row,
             use("SELECT size, modified, etag, blob, extra FROM object WHERE bucket = ? AND key = ?"));
  row->bind(1, bucket).bind_blob(2, key);
  MUSTER_TRY(const bool found, row->step());
  if (!found) return std::nullopt;
  MUSTER_TRY(auto extra, unpack_extra(row->blob(4)));
  return ObjectRow{.key = std::string(key),
                   .size = static_cast<std::uint64_t>(row->integer(0)),
                   .modified = Time{row->integer(1)},
                   .etag = std::string(row->text(2)),
                   .blob = row->integer(3),
                   .extra = std::move(extra)};
}

Result<std::vector<Piece>> Catalog::pieces(std::int64_t blob) {
  MUSTER_TRY(auto row, use("SELECT size, pieces FROM blob WHERE id = ?"));
  row->bind(1, blob);
  MUSTER_TRY(const bool found, row->step());
  if (!found) return fail(ErrorCode::not_found, "blob " + std::to_string(blob) + " is gone");
  if (row->is_null(1)) return std::vector<Piece>{{blob, static_cast<std::uint64_t>(row->integer(0))}};
  return unpack_pieces(row->blob(1));
}

Result<ports::ListPage> Catalog::list(std::int64_t bucket, const ports::ListQuery& query) {
  ports::ListPage page;
  if (query.max == 0) return page;
  MUSTER_TRY(auto row, use("SELECT key, size, modified, etag FROM object "
                           "WHERE bucket = ? AND key >= ? AND key < ? ORDER BY key"));
  const auto upper = end_of(query.prefix);
  const auto seek = [&](std::string_view lower) {
    row->reset();
    row->bind(1, bucket).bind_blob(2, lower).bind_blob(3, upper);
  };
  seek(first_wanted(query));
  for (;;) {
    MUSTER_TRY(const bool found, row->step());
    if (!found) return page;
    if (page.objects.size() + page.prefixes.size() == query.max) {
      page.truncated = true;
      return page;
    }
    const auto key = row->blob(0);
    if (const auto common = rolled_up(key, query); !common.empty()) {
      page.next = common;
      page.prefixes.emplace_back(common);
      seek(end_of(page.next));
      continue;
    }
    page.next = key;
    page.objects.push_back({.key = page.next,
                            .size = static_cast<std::uint64_t>(row->integer(1)),
                            .etag = std::string(row->text(3)),
                            .modified = Time{row->integer(2)},
                            .attributes = {},
                            .checksum = {}});
  }
}

Result<std::optional<UploadRow>> Catalog::upload(std::int64_t bucket, std::string_view key,
                                                 std::string_view id) {
  MUSTER_TRY(auto row, use("SELECT created, extra FROM upload WHERE id = ? AND bucket = ? AND key = ?"));
  row->bind(1, id).bind(2, bucket).bind_blob(3, key);
  MUSTER_TRY(const bool found, row->step());
  if (!found) return std::nullopt;
  MUSTER_TRY(auto extra, unpack_extra(row->blob(1)));
  return UploadRow{.id = std::string(id),
                   .key = std::string(key),
                   .created = Time{row->integer(0)},
                   .extra = std::move(extra)};
}

Result<std::vector<UploadRow>> Catalog::uploads(std::int64_t bucket, const ports::UploadQuery& query,
                                                std::size_t max) {
  MUSTER_TRY(auto row,
             use("SELECT id, key, created, extra FROM upload WHERE bucket = ? AND key >= ? AND key < ? "
                 "AND (key > ? OR (key = ? AND id > ?)) ORDER BY key, id LIMIT ?"));
  // Without an upload to go on from, the whole key has been seen.
  const std::string after_upload = query.after_upload.empty() ? "~" : query.after_upload;
  row->bind(1, bucket).bind_blob(2, query.prefix).bind_blob(3, end_of(query.prefix));
  row->bind_blob(4, query.after_key).bind_blob(5, query.after_key).bind(6, after_upload);
  row->bind(7, static_cast<std::int64_t>(max));
  std::vector<UploadRow> out;
  for (;;) {
    MUSTER_TRY(const bool found, row->step());
    if (!found) return out;
    MUSTER_TRY(auto extra, unpack_extra(row->blob(3)));
    out.push_back({.id = std::string(row->text(0)),
                   .key = std::string(row->blob(1)),
                   .created = Time{row->integer(2)},
                   .extra = std::move(extra)});
  }
}

Result<std::vector<std::string>> Catalog::idle_uploads(Time before, std::size_t max) {
  MUSTER_TRY(auto row,
             use("SELECT id FROM upload WHERE created < ? AND NOT EXISTS "
                 "(SELECT 1 FROM part WHERE part.upload = upload.id AND part.modified >= ?) LIMIT ?"));
  row->bind(1, before.unix_ms).bind(2, before.unix_ms).bind(3, static_cast<std::int64_t>(max));
  std::vector<std::string> out;
  for (;;) {
    MUSTER_TRY(const bool found, row->step());
    if (!found) return out;
    out.emplace_back(row->text(0));
  }
}

namespace {
PartRow part_row(const sqlite::Statement& row) {
  return {.number = static_cast<std::uint32_t>(row.integer(0)),
          .size = static_cast<std::uint64_t>(row.integer(1)),
          .modified = Time{row.integer(2)},
          .etag = std::string(row.text(3)),
          .checksum = std::string(row.blob(4)),
          .blob = row.integer(5)};
}
}  // namespace

Result<std::vector<PartRow>> Catalog::parts(std::string_view upload, std::uint32_t after, std::size_t max) {
  MUSTER_TRY(auto row, use("SELECT number, size, modified, etag, checksum, blob FROM part "
                           "WHERE upload = ? AND number > ? ORDER BY number LIMIT ?"));
  row->bind(1, upload).bind(2, std::int64_t{after}).bind(3, static_cast<std::int64_t>(max));
  std::vector<PartRow> out;
  for (;;) {
    MUSTER_TRY(const bool found, row->step());
    if (!found) return out;
    out.push_back(part_row(*row.operator->()));
  }
}

Result<std::optional<PartRow>> Catalog::part(std::string_view upload, std::uint32_t number) {
  MUSTER_TRY(auto row, use("SELECT number, size, modified, etag, checksum, blob FROM part "
                           "WHERE upload = ? AND number = ?"));
  row->bind(1, upload).bind(2, std::int64_t{number});
  MUSTER_TRY(const bool found, row->step());
  if (!found) return std::nullopt;
  return part_row(*row.operator->());
}

Result<std::int64_t> Catalog::largest_blob() {
  MUSTER_TRY(auto row, use("SELECT coalesce(max(id), 0) FROM blob"));
  MUSTER_CHECK(row->step());
  return row->integer(0);
}

Result<bool> Catalog::has_blob(std::int64_t id) {
  MUSTER_TRY(auto row, use("SELECT 1 FROM blob WHERE id = ?"));
  row->bind(1, id);
  return row->step();
}

Result<std::vector<DeadBlob>> Catalog::dead_blobs(std::size_t max) {
  MUSTER_TRY(auto row, use("SELECT id, pieces IS NOT NULL FROM blob WHERE users = 0 ORDER BY id LIMIT ?"));
  row->bind(1, static_cast<std::int64_t>(max));
  std::vector<DeadBlob> out;
  for (;;) {
    MUSTER_TRY(const bool found, row->step());
    if (!found) return out;
    out.push_back({.id = row->integer(0), .composite = row->integer(1) != 0});
  }
}

Result<void> Catalog::insert_bucket(const ports::Bucket& bucket) {
  MUSTER_TRY(auto row, use("INSERT INTO bucket(name, region, created) VALUES(?, ?, ?)"));
  row->bind(1, bucket.name).bind(2, bucket.region).bind(3, bucket.created.unix_ms);
  return row->run();
}

Result<void> Catalog::delete_bucket(std::int64_t bucket) {
  MUSTER_TRY(auto free, use("UPDATE blob SET users = users - 1 WHERE id IN (SELECT part.blob FROM part "
                            "JOIN upload ON part.upload = upload.id WHERE upload.bucket = ?)"));
  free->bind(1, bucket);
  MUSTER_CHECK(free->run());
  MUSTER_TRY(auto parts, use("DELETE FROM part WHERE upload IN (SELECT id FROM upload WHERE bucket = ?)"));
  parts->bind(1, bucket);
  MUSTER_CHECK(parts->run());
  MUSTER_TRY(auto uploads, use("DELETE FROM upload WHERE bucket = ?"));
  uploads->bind(1, bucket);
  MUSTER_CHECK(uploads->run());
  MUSTER_TRY(auto row, use("DELETE FROM bucket WHERE id = ?"));
  row->bind(1, bucket);
  return row->run();
}

Result<void> Catalog::insert_simple_blob(std::int64_t id, std::uint64_t size) {
  MUSTER_TRY(auto row, use("INSERT INTO blob(id, users, size, pieces) VALUES(?, 1, ?, NULL)"));
  row->bind(1, id).bind(2, static_cast<std::int64_t>(size));
  return row->run();
}

Result<void> Catalog::insert_composite_blob(std::int64_t id, std::uint64_t size,
                                            const std::vector<Piece>& pieces) {
  MUSTER_TRY(auto row, use("INSERT INTO blob(id, users, size, pieces) VALUES(?, 1, ?, ?)"));
  row->bind(1, id).bind(2, static_cast<std::int64_t>(size)).bind_blob(3, pack_pieces(pieces));
  return row->run();
}

Result<void> Catalog::add_user(std::int64_t blob) {
  if (blob == 0) return {};
  MUSTER_TRY(auto row, use("UPDATE blob SET users = users + 1 WHERE id = ?"));
  row->bind(1, blob);
  return row->run();
}

Result<void> Catalog::remove_user(std::int64_t blob) {
  if (blob == 0) return {};
  MUSTER_TRY(auto row, use("UPDATE blob SET users = users - 1 WHERE id = ?"));
  row->bind(1, blob);
  return row->run();
}

Result<void> Catalog::delete_blob(std::int64_t id) {
  MUSTER_TRY(auto row, use("DELETE FROM blob WHERE id = ?"));
  row->bind(1, id);
  return row->run();
}

Result<void> Catalog::put_object(std::int64_t bucket, const ObjectRow& object) {
  MUSTER_TRY(auto old, use("UPDATE blob SET users = users - 1 WHERE id = "
                           "(SELECT blob FROM object WHERE bucket = ? AND key = ?)"));
  old->bind(1, bucket).bind_blob(2, object.key);
  MUSTER_CHECK(old->run());
  MUSTER_TRY(auto row, use("INSERT OR REPLACE INTO object(bucket, key, size, modified, etag, blob, extra) "
                           "VALUES(?, ?, ?, ?, ?, ?, ?)"));
  row->bind(1, bucket).bind_blob(2, object.key).bind(3, static_cast<std::int64_t>(object.size));
  row->bind(4, object.modified.unix_ms).bind(5, object.etag).bind(6, object.blob);
  row->bind_blob(7, pack_extra(object.extra));
  return row->run();
}

Result<void> Catalog::delete_object(std::int64_t bucket, std::string_view key) {
  MUSTER_TRY(auto old, use("UPDATE blob SET users = users - 1 WHERE id = "
                           "(SELECT blob FROM object WHERE bucket = ? AND key = ?)"));
  old->bind(1, bucket).bind_blob(2, key);
  MUSTER_CHECK(old->run());
  MUSTER_TRY(auto row, use("DELETE FROM object WHERE bucket = ? AND key = ?"));
  row->bind(1, bucket).bind_blob(2, key);
  return row->run();
}

Result<void> Catalog::insert_upload(std::int64_t bucket, const UploadRow& upload) {
  MUSTER_TRY(auto row, use("INSERT INTO upload(id, bucket, key, created, extra) VALUES(?, ?, ?, ?, ?)"));
  row->bind(1, upload.id).bind(2, bucket).bind_blob(3, upload.key).bind(4, upload.created.unix_ms);
  row->bind_blob(5, pack_extra(upload.extra));
  return row->run();
}

Result<void> Catalog::put_part(std::string_view upload, const PartRow& part) {
  MUSTER_CHECK(remove_part_user(upload, part.number));
  MUSTER_TRY(auto row,
             use("INSERT OR REPLACE INTO part(upload, number, size, modified, etag, checksum, blob) "
                 "VALUES(?, ?, ?, ?, ?, ?, ?)"));
  row->bind(1, upload).bind(2, std::int64_t{part.number}).bind(3, static_cast<std::int64_t>(part.size));
  row->bind(4, part.modified.unix_ms).bind(5, part.etag).bind_blob(6, part.checksum).bind(7, part.blob);
  return row->run();
}

Result<void> Catalog::remove_part_user(std::string_view upload, std::uint32_t number) {
  MUSTER_TRY(auto row, use("UPDATE blob SET users = users - 1 WHERE id = "
                           "(SELECT blob FROM part WHERE upload = ? AND number = ?)"));
  row->bind(1, upload).bind(2, std::int64_t{number});
  return row->run();
}

Result<void> Catalog::delete_upload(std::string_view id, bool free_parts) {
  if (free_parts) {
    MUSTER_TRY(auto free, use("UPDATE blob SET users = users - 1 WHERE id IN "
                              "(SELECT blob FROM part WHERE upload = ?)"));
    free->bind(1, id);
    MUSTER_CHECK(free->run());
  }
  MUSTER_TRY(auto parts, use("DELETE FROM part WHERE upload = ?"));
  parts->bind(1, id);
  MUSTER_CHECK(parts->run());
  MUSTER_TRY(auto row, use("DELETE FROM upload WHERE id = ?"));
  row->bind(1, id);
  return row->run();
}

}  // namespace muster::objectstore
