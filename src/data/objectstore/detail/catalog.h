// The metadata database on one connection: rows in and out, no rules. A Catalog belongs to one thread at a
// time; the store has one for writing (the writer's) and a pool for reading.
//
// A blob is a run of bytes with a count of its users. A simple blob has one content file named by its number;
// a composite one is a list of simple blobs, each of which it uses. A blob without users is dead: the reaper
// removes its content and then its row, so that no crash leaves a file that nobody knows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/sqlite.h"
#include "data/objectstore/detail/record.h"
#include "ports/object_store.h"

namespace muster::objectstore {

struct BucketRow {
  std::int64_t id = 0;
  ports::Bucket bucket;
};

struct ObjectRow {
  std::string key;
  std::uint64_t size = 0;
  Time modified;
  std::string etag;
  std::int64_t blob = 0;  // 0: an empty object
  Extra extra;
};

struct UploadRow {
  std::string id;
  std::string key;
  Time created;
  Extra extra;  // checksum: kind only
};

struct PartRow {
  std::uint32_t number = 0;
  std::uint64_t size = 0;
  Time modified;
  std::string etag;
  std::string checksum;  // raw digest, or empty
  std::int64_t blob = 0;
};

struct DeadBlob {
  std::int64_t id = 0;
  bool composite = false;
};

class Catalog {
 public:
  // Makes or checks the schema; refuses a newer format.
  static Result<Catalog> open_writer(const std::string& path, bool sync);
  static Result<Catalog> open_reader(const std::string& path);

  Result<sqlite::Transaction> begin() { return sqlite::Transaction::begin(database_); }

  // Moves the write-ahead log into the database and cuts it off, as far as readers allow: room on a full
  // disk.
  void shrink_log() { static_cast<void>(database_.execute("PRAGMA wal_checkpoint(TRUNCATE)")); }

  // ---- reads ----
  Result<std::optional<BucketRow>> bucket(std::string_view name);
  Result<std::vector<BucketRow>> buckets();
  Result<bool> bucket_empty(std::int64_t bucket);
  Result<std::optional<ObjectRow>> object(std::int64_t bucket, std::string_view key);
  // The pieces of a blob: itself when simple, else its list. not_found.
  Result<std::vector<Piece>> pieces(std::int64_t blob);
  Result<ports::ListPage> list(std::int64_t bucket, const ports::ListQuery& query);
  Result<std::optional<UploadRow>> upload(std::int64_t bucket, std::string_view key, std::string_view id);
  Result<std::vector<UploadRow>> uploads(std::int64_t bucket, const ports::UploadQuery& query,
                                         std::size_t max);
  // Ids of uploads begun before `before` whose parts are all older too.
  Result<std::vector<std::string>> idle_uploads(Time before, std::size_t max);
  Result<std::vector<PartRow>> parts(std::string_view upload, std::uint32_t after, std::size_t max);
  Result<std::optional<PartRow>> part(std::string_view upload, std::uint32_t number);
  Result<std::int64_t> largest_blob();
  Result<bool> has_blob(std::int64_t id);
  Result<std::vector<DeadBlob>> dead_blobs(std::size_t max);

  // ---- writes, inside a transaction ----
  Result<void> insert_bucket(const ports::Bucket& bucket);
  Result<void> delete_bucket(std::int64_t bucket);  // its uploads too
  Result<void> insert_simple_blob(std::int64_t id, std::uint64_t size);
  Result<void> insert_composite_blob(std::int64_t id, std::uint64_t size, const std::vector<Piece>& pieces);
  Result<void> add_user(std::int64_t blob);     // 0: nothing
  Result<void> remove_user(std::int64_t blob);  // 0: nothing
  Result<void> delete_blob(std::int64_t id);
  Result<void> put_object(std::int64_t bucket, const ObjectRow& row);  // the old row's blob loses its user
  Result<void> delete_object(std::int64_t bucket, std::string_view key);
  Result<void> insert_upload(std::int64_t bucket, const UploadRow& row);
  Result<void> put_part(std::string_view upload, const PartRow& row);
  // free_parts: blobs of parts lose their user; else the caller has taken them over.
  Result<void> delete_upload(std::string_view id, bool free_parts);
  Result<void> remove_part_user(std::string_view upload, std::uint32_t number);

 private:
  // A prepared statement in use; reset when it goes, so that no read transaction stays open.
  class Use {
   public:
    explicit Use(sqlite::Statement& statement) : statement_(&statement) {}
    Use(Use&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
    ~Use() {
      if (statement_ != nullptr) statement_->reset();
    }
    sqlite::Statement* operator->() const { return statement_; }

   private:
    sqlite::Statement* statement_;
  };

  explicit Catalog(sqlite::Database database) : database_(std::move(database)) {}
  // `sql` is a literal: prepared once.
  Result<Use> use(std::string_view sql);

  sqlite::Database database_;
  std::map<std::string_view, sqlite::Statement> statements_;
};

}  // namespace muster::objectstore
