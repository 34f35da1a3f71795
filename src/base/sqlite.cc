#include "base/sqlite.h"

#include <sqlite3.h>

#include <utility>

#include "base/assert.h"

namespace muster::sqlite {
namespace {

tl::unexpected<Error> failure(sqlite3* connection, int code, std::string_view doing) {
  auto kind = ErrorCode::internal;
  switch (code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      kind = ErrorCode::io;
      break;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      kind = ErrorCode::permission_denied;
      break;
    case SQLITE_CONSTRAINT:
      kind = ErrorCode::already_exists;
      break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      kind = ErrorCode::unavailable;
      break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      kind = ErrorCode::corrupt;
      break;
    default:
      break;
  }
  const char* why = connection != nullptr ? sqlite3_errmsg(connection) : sqlite3_errstr(code);
  return fail(kind, std::string(doing) + ": " + why);
}

}  // namespace

struct Database::Impl {
  sqlite3* connection = nullptr;
  std::string path;
  Impl() = default;
  ~Impl() { sqlite3_close_v2(connection); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

struct Statement::Impl {
  sqlite3_stmt* statement = nullptr;
  Impl() = default;
  ~Impl() { sqlite3_finalize(statement); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

Statement::Statement(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Statement::Statement(Statement&&) noexcept = default;
Statement& Statement::operator=(Statement&&) noexcept = default;
Statement::~Statement() = default;

Statement& Statement::bind(int index, std::int64_t value) {
  MUSTER_ASSERT(sqlite3_bind_int64(impl_->statement, index, value) == SQLITE_OK);
  return *this;
}

Statement& Statement::bind(int index, std::string_view text) {
  MUSTER_ASSERT(sqlite3_bind_text64(impl_->statement, index, text.data() != nullptr ? text.data() : "",
                                    text.size(), SQLITE_TRANSIENT, SQLITE_UTF8) == SQLITE_OK);
  return *this;
}

Statement& Statement::bind_blob(int index, std::string_view bytes) {
  MUSTER_ASSERT(sqlite3_bind_blob64(impl_->statement, index, bytes.data() != nullptr ? bytes.data() : "",
                                    bytes.size(), SQLITE_TRANSIENT) == SQLITE_OK);
  return *this;
}

Statement& Statement::bind_null(int index) {
  MUSTER_ASSERT(sqlite3_bind_null(impl_->statement, index) == SQLITE_OK);
  return *this;
}

Result<bool> Statement::step() {
  const int code = sqlite3_step(impl_->statement);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  auto* connection = sqlite3_db_handle(impl_->statement);
  auto error = failure(connection, sqlite3_extended_errcode(connection), "SQLite");
  sqlite3_reset(impl_->statement);
  return error;
}

Result<void> Statement::run() {
  auto stepped = step();
  reset();
  if (!stepped) return tl::unexpected(std::move(stepped).error());
  return {};
}

void Statement::reset() {
  sqlite3_reset(impl_->statement);
  sqlite3_clear_bindings(impl_->statement);
}

std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(impl_->statement, column); }

std::string_view Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(impl_->statement, column));
  if (data == nullptr) return {};
  return {data, static_cast<std::size_t>(sqlite3_column_bytes(impl_->statement, column))};
}

std::string_view Statement::blob(int column) const {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(impl_->statement, column));
  if (data == nullptr) return {};
  return {data, static_cast<std::size_t>(sqlite3_column_bytes(impl_->statement, column))};
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(impl_->statement, column) == SQLITE_NULL;
}

Database::Database(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Database::Database(Database&&) noexcept = default;
Database& Database::operator=(Database&&) noexcept = default;
Database::~Database() = default;

Result<Database> Database::open(const std::string& path, Options options) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  int flags = options.read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
  if (options.create && !options.read_only) flags |= SQLITE_OPEN_CREATE;
  const int code = sqlite3_open_v2(path.c_str(), &impl->connection, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return failure(impl->connection, code, "open " + path);
  sqlite3_busy_timeout(impl->connection, 5000);
  Database database(std::move(impl));
  if (!options.read_only) {
    MUSTER_CHECK(database.execute("PRAGMA journal_mode=WAL"));
    MUSTER_CHECK(
        database.execute(options.full_sync ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL"));
  }
  MUSTER_CHECK(database.execute("PRAGMA foreign_keys=ON"));
  return database;
}

Result<Statement> Database::prepare(std::string_view sql) {
  auto impl = std::make_unique<Statement::Impl>();
  const int code = sqlite3_prepare_v3(impl_->connection, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &impl->statement, nullptr);
  if (code != SQLITE_OK) return failure(impl_->connection, code, "prepare for " + impl_->path);
  return Statement(std::move(impl));
}

Result<void> Database::execute(std::string_view sql) {
  const int code = sqlite3_exec(impl_->connection, std::string(sql).c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return failure(impl_->connection, code, impl_->path);
  return {};
}

std::int64_t Database::last_insert_rowid() const { return sqlite3_last_insert_rowid(impl_->connection); }

std::int64_t Database::changes() const { return sqlite3_changes64(impl_->connection); }

Result<Transaction> Transaction::begin(Database& database) {
  MUSTER_CHECK(database.execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}

Transaction::~Transaction() {
  if (database_ != nullptr) static_cast<void>(database_->execute("ROLLBACK"));
}

Result<void> Transaction::commit() {
  MUSTER_ASSERT(database_ != nullptr);
  MUSTER_CHECK(database_->execute("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace muster::sqlite
