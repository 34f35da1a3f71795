// SQLite, RAII: a connection, prepared statements, transactions. No sqlite3 type shows.
//
// A Database and its Statements belong to one thread at a time. Statements are prepared once and reused:
// bind 1..n, step() until false, reset().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace muster::sqlite {

class Statement {
 public:
  Statement(Statement&&) noexcept;
  Statement& operator=(Statement&&) noexcept;
  ~Statement();

  // Parameters are numbered from 1. Text and blobs are copied.
  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, std::string_view text);
  Statement& bind_blob(int index, std::string_view bytes);
  Statement& bind_null(int index);

  // true: a row is ready; false: done. Errors: io (disk full, ...), already_exists (constraint),
  // unavailable (locked), corrupt.
  Result<bool> step();
  // For statements without rows: bind, run(), and it is reset for the next use.
  Result<void> run();
  void reset();

  // Columns are numbered from 0 and valid until the next step or reset. Views point into the row.
  std::int64_t integer(int column) const;
  std::string_view text(int column) const;
  std::string_view blob(int column) const;
  bool is_null(int column) const;

 private:
  friend class Database;
  struct Impl;
  explicit Statement(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Options {
  bool create = true;
  bool read_only = false;
  // FULL: a committed transaction survives power loss. NORMAL: may lose the last ones, never corrupts.
  bool full_sync = true;
};

class Database {
 public:
  // Opens in WAL mode with a busy time-out of 5 s.
  static Result<Database> open(const std::string& path, Options options = {});
  Database(Database&&) noexcept;
  Database& operator=(Database&&) noexcept;
  ~Database();

  Result<Statement> prepare(std::string_view sql);
  // One or more statements without parameters or rows.
  Result<void> execute(std::string_view sql);
  std::int64_t last_insert_rowid() const;
  std::int64_t changes() const;

 private:
  struct Impl;
  explicit Database(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// BEGIN IMMEDIATE ... COMMIT; rolled back by the destructor unless committed.
class Transaction {
 public:
  static Result<Transaction> begin(Database& database);
  Transaction(Transaction&& other) noexcept;
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Result<void> commit();

 private:
  explicit Transaction(Database& database) : database_(&database) {}
  Database* database_;
};

}  // namespace muster::sqlite
