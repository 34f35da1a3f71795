// ports::ObjectStore on a directory: the rules of objects, buckets and uploads over Catalog (rows),
// ContentFolder (bytes), Writer (commits) and Reaper (removal).
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/file.h"
#include "data/objectstore/detail/catalog.h"
#include "data/objectstore/detail/content.h"
#include "data/objectstore/detail/intake.h"
#include "data/objectstore/detail/reaper.h"
#include "data/objectstore/detail/writer.h"
#include "data/objectstore/object_store.h"
#include "ports/object_store.h"

namespace muster::objectstore {

// Read connections, lent one at a time. Thread-safe.
class ReadPool {
 public:
  explicit ReadPool(std::vector<Catalog> all);

  class Lease {
   public:
    explicit Lease(ReadPool& pool);  // waits for a connection
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Catalog* operator->() { return catalog_; }
    Catalog& operator*() { return *catalog_; }

   private:
    ReadPool& pool_;
    Catalog* catalog_;
  };

 private:
  std::vector<Catalog> all_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<Catalog*> free_;
};

class DirectoryStore final : public ports::ObjectStore {
 public:
  static Result<std::unique_ptr<ports::ObjectStore>> open(const Options& options);

  ports::ObjectResult<void> create_bucket(const ports::Bucket& bucket) override;
  ports::ObjectResult<void> remove_bucket(std::string_view bucket) override;
  ports::ObjectResult<ports::Bucket> bucket(std::string_view name) override;
  ports::ObjectResult<std::vector<ports::Bucket>> buckets() override;

  ports::ObjectResult<ports::Written> put(std::string_view bucket, std::string_view key,
                                          ports::ByteSource& source, const ports::PutOptions& options,
                                          Time now) override;
  ports::ObjectResult<ports::ObjectInfo> head(std::string_view bucket, std::string_view key) override;
  ports::ObjectResult<std::unique_ptr<ports::OpenObject>> get(std::string_view bucket,
                                                              std::string_view key) override;
  ports::ObjectResult<void> remove(std::string_view bucket, std::string_view key,
                                   const ports::Condition& condition) override;
  ports::ObjectResult<void> remove_all(std::string_view bucket, std::span<const std::string> keys) override;
  ports::ObjectResult<ports::ListPage> list(std::string_view bucket, const ports::ListQuery& query) override;
  ports::ObjectResult<ports::Written> copy(std::string_view from_bucket, std::string_view from_key,
                                           std::string_view to_bucket, std::string_view to_key,
                                           const ports::CopyOptions& options, Time now) override;

  ports::ObjectResult<ports::UploadInfo> create_upload(std::string_view bucket, std::string_view key,
                                                       const ports::UploadOptions& options,
                                                       Time now) override;
  ports::ObjectResult<ports::UploadInfo> upload(std::string_view bucket, std::string_view key,
                                                std::string_view id) override;
  ports::ObjectResult<ports::Written> put_part(std::string_view bucket, std::string_view key,
                                               std::string_view id, std::uint32_t number,
                                               ports::ByteSource& source, const ports::PutOptions& options,
                                               Time now) override;
  ports::ObjectResult<ports::Written> complete_upload(std::string_view bucket, std::string_view key,
                                                      std::string_view id,
                                                      std::span<const ports::CompletedPart> parts,
                                                      const ports::CompleteOptions& options,
                                                      Time now) override;
  ports::ObjectResult<void> abort_upload(std::string_view bucket, std::string_view key,
                                         std::string_view id) override;
  ports::ObjectResult<std::size_t> abort_idle_uploads(Time before) override;
  ports::ObjectResult<ports::PartPage> list_parts(std::string_view bucket, std::string_view key,
                                                  std::string_view id, std::uint32_t after,
                                                  std::size_t max) override;
  ports::ObjectResult<ports::UploadPage> list_uploads(std::string_view bucket,
                                                      const ports::UploadQuery& query) override;

 private:
  DirectoryStore(const Options& options, FileLock lock, ContentFolder folder, std::vector<Catalog> readers,
                 Catalog reaper_reader, Catalog writer, std::int64_t next_blob);

  std::int64_t next_blob() { return next_blob_.fetch_add(1); }
  // Commits what names `taken`, then gives its content its place.
  ports::ObjectResult<void> commit(TakenIn& taken, const Writer::Work& work);

  const Options options_;
  FileLock lock_;
  ContentFolder folder_;
  std::atomic<std::int64_t> next_blob_;
  BufferPool buffers_;
  ReadPool readers_;
  Writer writer_;
  Reaper reaper_;
};

// ---- shared by the parts of the store ----

// no_such_bucket.
ports::ObjectResult<BucketRow> find_bucket(Catalog& catalog, std::string_view name);
ports::ObjectResult<void> check_key(std::string_view key);
ports::ObjectResult<void> check_condition(const ports::Condition& condition,
                                          const std::optional<ObjectRow>& now);
ports::ObjectInfo info_of(ObjectRow row);

}  // namespace muster::objectstore
