// Opening, buckets and single objects. Uploads in parts: upload.cc.
#include <algorithm>

#include "base/crypto.h"
#include "base/text.h"
#include "data/objectstore/detail/directory_store.h"
#include "data/objectstore/detail/refuse.h"

namespace muster::objectstore {

using ports::ObjectError;
using ports::ObjectFault;
using ports::ObjectResult;

namespace {

// Objects of at most this many pieces are opened at once; larger ones are pinned and opened piece by piece.
constexpr std::size_t kOpenAtOnce = 4;

class FileObject final : public ports::OpenObject {
 public:
  FileObject(ports::ObjectInfo info, std::vector<Piece> pieces, std::string name, const Note& note)
      : info_(std::move(info)), pieces_(std::move(pieces)), name_(std::move(name)), note_(note) {}
  ~FileObject() override {
    if (reaper_ != nullptr) reaper_->unpin(pinned_);
  }

  const ports::ObjectInfo& info() const override { return info_; }
  std::size_t piece_count() const override { return pieces_.size(); }
  std::uint64_t piece_length(std::size_t index) const override { return pieces_[index].length; }
  Result<ports::ObjectPiece> piece(std::size_t index) const override {
    if (!open_.empty()) return ports::ObjectPiece{open_[index], 0, pieces_[index].length};
    MUSTER_TRY(auto file, open(*folder_, pieces_[index]));
    return ports::ObjectPiece{std::make_shared<const UniqueFd>(std::move(file)), 0, pieces_[index].length};
  }

  // not_found when the content went away since the row was read; corrupt, and noted, when it is too short.
  Result<void> open_all(const ContentFolder& folder) {
    for (const auto& piece : pieces_) {
      MUSTER_TRY(auto file, open(folder, piece));
      open_.push_back(std::make_shared<const UniqueFd>(std::move(file)));
    }
    return {};
  }

  void keep_pinned(const ContentFolder& folder, Reaper& reaper, std::int64_t blob) {
    folder_ = &folder;
    reaper_ = &reaper;
    pinned_ = blob;
  }

 private:
  Result<UniqueFd> open(const ContentFolder& folder, const Piece& piece) const {
    auto file = folder.open_file(piece.blob, piece.length);
    if (file || file.error().code != ErrorCode::corrupt) return file;
    auto error = file.error().with_context("the content of " + name_ + " is damaged");
    if (note_) note_(error.message);
    return tl::unexpected(std::move(error));
  }

  ports::ObjectInfo info_;
  std::vector<Piece> pieces_;
  std::string name_;
  const Note& note_;
  std::vector<std::shared_ptr<const UniqueFd>> open_;
  const ContentFolder* folder_ = nullptr;
  Reaper* reaper_ = nullptr;
  std::int64_t pinned_ = 0;
};

ObjectResult<ObjectRow> find_object(Catalog& catalog, std::string_view bucket, std::string_view key) {
  MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
  MUSTER_TRY(auto object, catalog.object(row.id, key));
  if (!object) return refuse(ObjectFault::no_such_key, "The specified key does not exist.");
  return *std::move(object);
}

std::optional<ports::Checksum> checksum_of(const ports::PutOptions& options, const TakenIn& taken) {
  if (!options.checksum) return std::nullopt;
  return ports::Checksum{.kind = *options.checksum, .value = crypto::base64(*taken.checksum)};
}

}  // namespace

ObjectResult<BucketRow> find_bucket(Catalog& catalog, std::string_view name) {
  MUSTER_TRY(auto row, catalog.bucket(name));
  if (!row) return refuse(ObjectFault::no_such_bucket, "The specified bucket does not exist");
  return *std::move(row);
}

ObjectResult<void> check_key(std::string_view key) {
  if (key.empty() || key.size() > ports::ObjectLimits::key_bytes_max || !is_utf8(key)) {
    return tl::unexpected(
        ObjectError(Error{ErrorCode::invalid_argument,
                          "a key has 1 to 1024 bytes of UTF-8, this one has " + std::to_string(key.size())}));
  }
  return {};
}

ObjectResult<void> check_condition(const ports::Condition& condition, const std::optional<ObjectRow>& now) {
  if (condition.absent && now) {
    return refuse(ObjectFault::precondition_failed, "If-None-Match: the key exists");
  }
  if (!condition.etag) return {};
  if (!now) return refuse(ObjectFault::no_such_key, "The specified key does not exist.");
  if (*condition.etag != "*" && *condition.etag != now->etag) {
    return refuse(ObjectFault::precondition_failed, "If-Match: the ETag is now " + now->etag);
  }
  return {};
}

ports::ObjectInfo info_of(ObjectRow row) {
  return {.key = std::move(row.key),
          .size = row.size,
          .etag = std::move(row.etag),
          .modified = row.modified,
          .attributes = std::move(row.extra.attributes),
          .checksum = std::move(row.extra.checksum),
          .parts = row.extra.parts};
}

// ---- read pool ----

ReadPool::ReadPool(std::vector<Catalog> all) : all_(std::move(all)) {
  for (auto& catalog : all_) free_.push_back(&catalog);
}

ReadPool::Lease::Lease(ReadPool& pool) : pool_(pool) {
  std::unique_lock lock(pool.mutex_);
  pool.returned_.wait(lock, [&] { return !pool.free_.empty(); });
  catalog_ = pool.free_.back();
  pool.free_.pop_back();
}

ReadPool::Lease::~Lease() {
  {
    const std::lock_guard lock(pool_.mutex_);
    pool_.free_.push_back(catalog_);
  }
  pool_.returned_.notify_one();
}

// ---- opening ----

Result<std::unique_ptr<ports::ObjectStore>> open(const Options& options) {
  return DirectoryStore::open(options);
}

Result<std::unique_ptr<ports::ObjectStore>> DirectoryStore::open(const Options& options) {
  MUSTER_CHECK(make_directories(options.directory, 0700));
  MUSTER_TRY(auto lock, FileLock::acquire(options.directory + "/lock"));
  const auto database = options.directory + "/metadata.sqlite";
  MUSTER_TRY(auto folder, ContentFolder::open(options.directory, options.sync));
  MUSTER_TRY(auto writer, Catalog::open_writer(database, options.sync));
  MUSTER_CHECK(folder.sweep([&](std::int64_t id) { return writer.has_blob(id); }));
  MUSTER_TRY(const auto largest, writer.largest_blob());
  std::vector<Catalog> readers;
  for (int i = 0; i < std::max(1, options.readers); ++i) {
    MUSTER_TRY(auto reader, Catalog::open_reader(database));
    readers.push_back(std::move(reader));
  }
  MUSTER_TRY(auto reaper_reader, Catalog::open_reader(database));
  return std::unique_ptr<ports::ObjectStore>(new DirectoryStore(options, std::move(lock), std::move(folder),
                                                                std::move(readers), std::move(reaper_reader),
                                                                std::move(writer), largest + 1));
}

DirectoryStore::DirectoryStore(const Options& options, FileLock lock, ContentFolder folder,
                               std::vector<Catalog> readers, Catalog reaper_reader, Catalog writer,
                               std::int64_t next_blob)
    : options_(options),
      lock_(std::move(lock)),
      folder_(std::move(folder)),
      next_blob_(next_blob),
      buffers_(options.buffer_bytes_max),
      readers_(std::move(readers)),
      writer_(std::move(writer), Ballast(options.directory + "/ballast", options.ballast_bytes),
              [this] { return folder_.sync_names(); }),
      reaper_(folder_, std::move(reaper_reader), writer_) {}

ObjectResult<void> DirectoryStore::commit(TakenIn& taken, const Writer::Work& work) {
  bool uncertain = false;
  auto done = writer_.run(work, &uncertain);
  if (taken.content && done) taken.content->settle();
  if (taken.content && uncertain) taken.content->leave();
  if (done) reaper_.notice();
  return done;
}

// ---- buckets ----

ObjectResult<void> DirectoryStore::create_bucket(const ports::Bucket& bucket) {
  return writer_.run([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto there, catalog.bucket(bucket.name));
    if (there) return refuse(ObjectFault::bucket_exists, "bucket " + bucket.name + " exists");
    MUSTER_CHECK(catalog.insert_bucket(bucket));
    return {};
  });
}

ObjectResult<void> DirectoryStore::remove_bucket(std::string_view bucket) {
  auto done = writer_.run_freeing([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    MUSTER_TRY(const bool empty, catalog.bucket_empty(row.id));
    if (!empty) {
      return refuse(ObjectFault::bucket_not_empty, "The bucket you tried to delete is not empty");
    }
    MUSTER_CHECK(catalog.delete_bucket(row.id));
    return {};
  });
  if (done) reaper_.notice();
  return done;
}

ObjectResult<ports::Bucket> DirectoryStore::bucket(std::string_view name) {
  ReadPool::Lease reader(readers_);
  MUSTER_TRY(auto row, find_bucket(*reader, name));
  return std::move(row.bucket);
}

ObjectResult<std::vector<ports::Bucket>> DirectoryStore::buckets() {
  ReadPool::Lease reader(readers_);
  MUSTER_TRY(auto rows, reader->buckets());
  std::vector<ports::Bucket> out;
  for (auto& row : rows) out.push_back(std::move(row.bucket));
  return out;
}

// ---- objects ----

ObjectResult<ports::Written> DirectoryStore::put(std::string_view bucket, std::string_view key,
                                                 ports::ByteSource& source, const ports::PutOptions& options,
                                                 Time now) {
  MUSTER_CHECK(check_key(key));
  {
    // Before the body is read; looked at again when it is committed.
    ReadPool::Lease reader(readers_);
    MUSTER_TRY(const auto row, find_bucket(*reader, bucket));
    if (options.condition.absent || options.condition.etag) {
      MUSTER_TRY(const auto there, reader->object(row.id, key));
      MUSTER_CHECK(check_condition(options.condition, there));
    }
  }
  const auto blob = next_blob();
  MUSTER_TRY(auto taken, take_in(source, options, folder_, buffers_, blob));
  ObjectRow object{
      .key = std::string(key),
      .size = taken.size,
      .modified = now,
      .etag = crypto::hex(taken.md5),
      .blob = taken.content ? blob : 0,
      .extra = {.attributes = options.attributes, .checksum = checksum_of(options, taken), .upload = {}}};
  auto done = commit(taken, [&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    if (options.condition.absent || options.condition.etag) {
      MUSTER_TRY(const auto there, catalog.object(row.id, key));
      MUSTER_CHECK(check_condition(options.condition, there));
    }
    if (object.blob != 0) MUSTER_CHECK(catalog.insert_simple_blob(object.blob, object.size));
    MUSTER_CHECK(catalog.put_object(row.id, object));
    return {};
  });
  if (!done) return tl::unexpected(std::move(done).error());
  return ports::Written{.etag = object.etag, .checksum = object.extra.checksum, .modified = now};
}

ObjectResult<ports::ObjectInfo> DirectoryStore::head(std::string_view bucket, std::string_view key) {
  ReadPool::Lease reader(readers_);
  MUSTER_TRY(auto row, find_object(*reader, bucket, key));
  return info_of(std::move(row));
}

ObjectResult<std::unique_ptr<ports::OpenObject>> DirectoryStore::get(std::string_view bucket,
                                                                     std::string_view key) {
  // The content may be replaced and removed between the row and the opening of its files: then look again.
  constexpr int kAttempts = 100;
  ReadPool::Lease reader(readers_);
  const auto name = "s3://" + std::string(bucket) + "/" + std::string(key);
  for (int attempt = 0;; ++attempt) {
    MUSTER_TRY(auto row, find_object(*reader, bucket, key));
    const auto blob = row.blob;
    if (blob == 0) {
      return std::make_unique<FileObject>(info_of(std::move(row)), std::vector<Piece>{}, name, options_.note);
    }
    auto pieces = reader->pieces(blob);
    if (!pieces && pieces.error().code == ErrorCode::not_found && attempt < kAttempts) continue;
    if (!pieces) return tl::unexpected(std::move(pieces).error());
    const bool at_once = pieces->size() <= kOpenAtOnce;
    auto object =
        std::make_unique<FileObject>(info_of(std::move(row)), *std::move(pieces), name, options_.note);
    if (at_once) {
      auto opened = object->open_all(folder_);
      if (opened) return object;
      if (opened.error().code != ErrorCode::not_found) return tl::unexpected(std::move(opened).error());
    } else {
      reaper_.pin(blob);
      object->keep_pinned(folder_, reaper_, blob);
      // Pinned in time if the key still has it.
      MUSTER_TRY(const auto again, find_object(*reader, bucket, key));
      if (again.blob == blob) return object;
    }
    if (attempt == kAttempts) {
      Error error{ErrorCode::corrupt, "the content of " + name + " is missing on disk"};
      if (options_.note) options_.note(error.message);
      return tl::unexpected(ObjectError(std::move(error)));
    }
  }
}

ObjectResult<void> DirectoryStore::remove(std::string_view bucket, std::string_view key,
                                          const ports::Condition& condition) {
  auto done = writer_.run_freeing([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    MUSTER_TRY(const auto there, catalog.object(row.id, key));
    MUSTER_CHECK(check_condition(condition, there));
    if (there) MUSTER_CHECK(catalog.delete_object(row.id, key));
    return {};
  });
  if (done) reaper_.notice();
  return done;
}

ObjectResult<void> DirectoryStore::remove_all(std::string_view bucket, std::span<const std::string> keys) {
  auto done = writer_.run_freeing([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(const auto row, find_bucket(catalog, bucket));
    for (const auto& key : keys) MUSTER_CHECK(catalog.delete_object(row.id, key));
    return {};
  });
  if (done) reaper_.notice();
  return done;
}

ObjectResult<ports::ListPage> DirectoryStore::list(std::string_view bucket, const ports::ListQuery& query) {
  ReadPool::Lease reader(readers_);
  MUSTER_TRY(const auto row, find_bucket(*reader, bucket));
  MUSTER_TRY(auto page, reader->list(row.id, query));
  return page;
}

ObjectResult<ports::Written> DirectoryStore::copy(std::string_view from_bucket, std::string_view from_key,
                                                  std::string_view to_bucket, std::string_view to_key,
                                                  const ports::CopyOptions& options, Time now) {
  MUSTER_CHECK(check_key(to_key));
  ports::Written written;
  auto done = writer_.run([&](Catalog& catalog) -> ObjectResult<void> {
    MUSTER_TRY(auto object, find_object(catalog, from_bucket, from_key));
    if (options.source_etag && *options.source_etag != object.etag) {
      return refuse(ObjectFault::precondition_failed, "the source's ETag is now " + object.etag);
    }
    MUSTER_TRY(const auto target, find_bucket(catalog, to_bucket));
    MUSTER_TRY(const auto there, catalog.object(target.id, to_key));
    MUSTER_CHECK(check_condition(options.condition, there));
    object.key = to_key;
    object.modified = now;
    object.extra.upload.clear();
    if (options.replace) object.extra.attributes = *options.replace;
    MUSTER_CHECK(catalog.add_user(object.blob));
    MUSTER_CHECK(catalog.put_object(target.id, object));
    written = {.etag = object.etag, .checksum = object.extra.checksum, .modified = now};
    return {};
  });
  if (!done) return tl::unexpected(std::move(done).error());
  reaper_.notice();
  return written;
}

}  // namespace muster::objectstore
