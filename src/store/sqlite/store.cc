#include "store/sqlite/store.h"

#include <optional>
#include <string>
#include <utility>

#include "base/ballast.h"
#include "base/sqlite.h"
#include "wire/record/record.h"

namespace muster::store {
namespace {

constexpr int kFormat = 1;

constexpr std::string_view kSchema = R"sql(
CREATE TABLE IF NOT EXISTS meta(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  commit_sequence INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  format INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS record(
  kind INTEGER NOT NULL,
  key TEXT NOT NULL,
  revision INTEGER NOT NULL,
  version INTEGER NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (kind, key));
)sql";

// All that State holds: every kind but the requests, which are read one by one. A kind that this program does
// not know is loaded too, so that decode_record refuses it.
std::string load_query() {
  return "SELECT kind, version, body FROM record WHERE kind <> " +
         std::to_string(static_cast<int>(domain::RecordKind::request)) + " ORDER BY kind, key";
}

struct Statements {
  sqlite::Statement meta;
  sqlite::Statement advance;
  sqlite::Statement put;
  sqlite::Statement erase;
  sqlite::Statement read;
  sqlite::Statement load;

  static Result<Statements> prepare(sqlite::Database& database) {
    MUSTER_TRY(auto meta, database.prepare("SELECT commit_sequence, epoch, format FROM meta WHERE id = 1"));
    MUSTER_TRY(auto advance, database.prepare("UPDATE meta SET commit_sequence = ?, epoch = ? WHERE id = 1"));
    MUSTER_TRY(auto put, database.prepare(
                             "INSERT INTO record(kind, key, revision, version, body) VALUES(?, ?, 1, ?, ?) "
                             "ON CONFLICT(kind, key) DO UPDATE SET revision = revision + 1, "
                             "version = excluded.version, body = excluded.body"));
    MUSTER_TRY(auto erase, database.prepare("DELETE FROM record WHERE kind = ? AND key = ?"));
    MUSTER_TRY(auto read, database.prepare("SELECT version, body FROM record WHERE kind = ? AND key = ?"));
    MUSTER_TRY(auto load, database.prepare(load_query()));
    return Statements{std::move(meta),  std::move(advance), std::move(put),
                      std::move(erase), std::move(read),    std::move(load)};
  }
};

class SqliteStore final : public ports::Store {
 public:
  SqliteStore(sqlite::Database database, Statements statements, Ballast ballast)
      : database_(std::move(database)), statements_(std::move(statements)), ballast_(std::move(ballast)) {}

  Result<ports::StoreMeta> meta() override {
    ports::StoreMeta result;
    auto& query = statements_.meta;
    auto row = query.step();
    if (row && *row) {
      result.commit_sequence = static_cast<std::uint64_t>(query.integer(0));
      result.epoch = static_cast<std::uint64_t>(query.integer(1));
      result.format = static_cast<int>(query.integer(2));
    }
    query.reset();
    if (!row) return tl::unexpected(std::move(row).error().with_context("state store"));
    if (!*row) return fail(ErrorCode::corrupt, "state store: the row of meta is missing");
    return result;
  }

  Result<ports::StoreMeta> open_epoch() override {
    return with_ballast([&] { return next_epoch(); });
  }

  Result<domain::Commit> load() override {
    domain::Commit commit;
    auto& query = statements_.load;
    query.reset();
    while (true) {
      MUSTER_TRY(const bool row, query.step());
      if (!row) break;
      auto record = wire::decode_record(static_cast<domain::RecordKind>(query.integer(0)),
                                        static_cast<int>(query.integer(1)), query.text(2));
      if (!record) {
        query.reset();
        return tl::unexpected(std::move(record).error().with_context("state store"));
      }
      commit.changes.emplace_back(domain::Put{*std::move(record)});
    }
    query.reset();
    return commit;
  }

  Result<std::optional<domain::Record>> read(domain::RecordKind kind, std::string_view key) override {
    auto& query = statements_.read;
    query.reset();
    query.bind(1, static_cast<std::int64_t>(kind)).bind(2, key);
    MUSTER_TRY(const bool row, query.step());
    if (!row) {
      query.reset();
      return std::nullopt;
    }
    auto record = wire::decode_record(kind, static_cast<int>(query.integer(0)), query.text(1));
    query.reset();
    if (!record) return tl::unexpected(std::move(record).error().with_context("state store"));
    return *std::move(record);
  }

  Result<ports::StoreMeta> commit(std::uint64_t expected_sequence, std::uint64_t epoch,
                                  const domain::Commit& commit) override {
    return with_ballast([&] { return write(expected_sequence, epoch, commit); });
  }

  std::optional<Shortage> low_on_space() override {
    ballast_.restore();  // new jobs are refused meanwhile, so there may be no commit that would put it back
    return ballast_.shortage();
  }

 private:
  // Runs `write`; once more, with the space that was held back, when it fails for want of some.
  template <typename Write>
  Result<ports::StoreMeta> with_ballast(const Write& write) {
    auto done = write();
    if (!done && done.error().code == ErrorCode::io && ballast_.release()) {
      done = write();
    } else if (done) {
      ballast_.restore();
    }
    return done;
  }

  Result<ports::StoreMeta> next_epoch() {
    MUSTER_TRY(auto transaction, sqlite::Transaction::begin(database_));
    MUSTER_TRY(auto now, meta());
    ++now.epoch;
    MUSTER_CHECK(advance(now));
    MUSTER_CHECK(transaction.commit());
    return now;
  }

  Result<void> advance(const ports::StoreMeta& to) {
    return statements_.advance.bind(1, static_cast<std::int64_t>(to.commit_sequence))
        .bind(2, static_cast<std::int64_t>(to.epoch))
        .run();
  }

  Result<ports::StoreMeta> write(std::uint64_t expected_sequence, std::uint64_t epoch,
                                 const domain::Commit& commit) {
    MUSTER_TRY(auto transaction, sqlite::Transaction::begin(database_));
    MUSTER_TRY(auto now, meta());
    if (now.commit_sequence != expected_sequence || now.epoch != epoch) {
      return fail(ErrorCode::failed_precondition,
                  "the store is at commit " + std::to_string(now.commit_sequence) + " of epoch " +
                      std::to_string(now.epoch) + ", not at " + std::to_string(expected_sequence) +
                      " of epoch " + std::to_string(epoch) + ": another process writes to it");
    }
    for (const auto& change : commit.changes) MUSTER_CHECK(write(change));
    ++now.commit_sequence;
    MUSTER_CHECK(advance(now));
    MUSTER_CHECK(transaction.commit());
    return now;
  }

  Result<void> write(const domain::Change& change) {
    if (const auto* put = std::get_if<domain::Put>(&change)) {
      return statements_.put.bind(1, static_cast<std::int64_t>(kind_of(put->record)))
          .bind(2, key_of(put->record))
          .bind(3, static_cast<std::int64_t>(wire::kRecordVersion))
          .bind(4, wire::encode_record(put->record))
          .run();
    }
    const auto& erase = std::get<domain::Erase>(change);
    return statements_.erase.bind(1, static_cast<std::int64_t>(erase.kind)).bind(2, erase.key).run();
  }

  sqlite::Database database_;
  Statements statements_;
  Ballast ballast_;
};

std::string ballast_of(const std::string& directory) { return directory + "/ballast"; }

}  // namespace

std::optional<Shortage> low_on_space(const std::string& directory, const SqliteOptions& options) {
  return ballast_shortage(ballast_of(directory), options.ballast_bytes);
}

Result<std::unique_ptr<ports::Store>> open_sqlite(const std::string& directory,
                                                  const SqliteOptions& options) {
  Ballast ballast(ballast_of(directory), options.ballast_bytes);
  ballast.restore();
  // A start needs room even where nothing is new: SQLite for the index of its log, the engine to try a node.
  ballast.release_if_scarce(options.ballast_bytes / 8);
  MUSTER_TRY(auto database, sqlite::Database::open(directory + "/state.db", {.full_sync = true}));
  MUSTER_CHECK(database.execute(kSchema));
  MUSTER_CHECK(
      database.execute("INSERT OR IGNORE INTO meta(id, commit_sequence, epoch, format) VALUES(1, 0, 0, " +
                       std::to_string(kFormat) + ")"));
  MUSTER_TRY(auto statements, Statements::prepare(database));
  auto store = std::make_unique<SqliteStore>(std::move(database), std::move(statements), std::move(ballast));
  MUSTER_TRY(const auto meta, store->meta());
  if (meta.format != kFormat) {
    return fail(ErrorCode::unsupported, directory + "/state.db has format " + std::to_string(meta.format) +
                                            ", this program reads " + std::to_string(kFormat) +
                                            ": use the muster that wrote it");
  }
  return std::unique_ptr<ports::Store>(std::move(store));
}

}  // namespace muster::store
