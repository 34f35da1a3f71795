// The content files. A new one is written as incoming/<id>, made durable, and moved to <2 hex>/<id> once the
// commit that names it is through; so after a crash only incoming/ has to be looked at. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "ports/object_store.h"

namespace muster::objectstore {

class ContentFolder {
 public:
  static Result<ContentFolder> open(const std::string& directory, bool sync);

  // A content file being written. Removed when it goes, unless committed.
  class Incoming {
   public:
    Incoming(Incoming&& other) noexcept;
    Incoming& operator=(Incoming&&) = delete;
    ~Incoming();
    // storage_full when the disk is.
    ports::ObjectResult<void> write(std::string_view data);
    // Data durable (the name is by sync_names()).
    ports::ObjectResult<void> finish();
    // The commit is through: moves the file to its place.
    void settle();
    // Whether the commit got through is unknown: the file stays for the sweep at the next start.
    void leave() { left_ = true; }
    std::int64_t id() const { return id_; }

   private:
    friend class ContentFolder;
    Incoming(const ContentFolder& folder, std::int64_t id, UniqueFd file)
        : folder_(&folder), id_(id), file_(std::move(file)) {}
    const ContentFolder* folder_;
    std::int64_t id_;
    UniqueFd file_;
    std::uint64_t written_ = 0;
    std::uint64_t flushed_ = 0;
    bool left_ = false;
  };

  // `size`, when known, is reserved on disk at once, so that a full disk is noticed before the body is read.
  ports::ObjectResult<Incoming> create(std::int64_t id, std::optional<std::uint64_t> size) const;
  // Names of finished incoming files durable.
  Result<void> sync_names() const;
  // not_found; corrupt when it has fewer than `bytes`.
  Result<UniqueFd> open_file(std::int64_t id, std::uint64_t bytes) const;
  Result<void> remove(std::int64_t id) const;  // absent: success
  // At start: files whose commit got through move to their place, others go.
  Result<void> sweep(const std::function<Result<bool>(std::int64_t)>& committed) const;

 private:
  ContentFolder(std::string directory, bool sync) : directory_(std::move(directory)), sync_(sync) {}
  Result<void> move_in(std::int64_t id) const;  // makes the folder that the file moves to
  std::string incoming(std::int64_t id) const;
  std::string settled(std::int64_t id) const;

  std::string directory_;
  bool sync_;
};

}  // namespace muster::objectstore
