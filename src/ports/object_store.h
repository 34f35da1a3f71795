// Objects in buckets, as S3 means them. Adapter: data/objectstore (a directory). One contract suite:
// data/objectstore/contract_test.cc.
//
// Thread-safe; calls block. A write is durable when its call returns, and all or nothing: a reader sees the
// old object or the new one, never a mix, and one that has opened the old content keeps it. Keys are any
// UTF-8 of 1 to 1,024 bytes, kept raw: no byte of a key is special, and their order is that of their bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/crypto.h"
#include "base/error.h"
#include "base/file.h"
#include "base/time.h"

namespace muster::ports {

// What S3 tells apart. `other` carries the Error of the layer below.
enum class ObjectFault {
  other,
  no_such_bucket,
  no_such_key,
  no_such_upload,
  bucket_exists,
  bucket_not_empty,
  bad_digest,       // the bytes received are not those announced
  incomplete_body,  // fewer or more bytes than announced
  source_failed,    // ByteSource::read answered an error
  entity_too_large,
  entity_too_small,  // a part below 5 MiB that is not the last
  invalid_part,      // never uploaded, or its ETag or checksum differs
  invalid_part_order,
  precondition_failed,
  storage_full,
};

struct [[nodiscard]] ObjectError {
  ObjectFault fault = ObjectFault::other;
  Error error;
  ObjectError(Error cause)
      : error(std::move(cause)) {}  // NOLINT(google-explicit-constructor): for MUSTER_TRY
  ObjectError(ObjectFault what, Error cause) : fault(what), error(std::move(cause)) {}
};

template <typename T>
using ObjectResult = tl::expected<T, ObjectError>;

struct ObjectLimits {
  static constexpr std::size_t key_bytes_max = 1024;
  static constexpr std::uint64_t put_bytes_max = 5ULL << 30;     // one PUT or one part
  static constexpr std::uint64_t object_bytes_max = 5ULL << 40;  // parts together
  static constexpr std::uint64_t part_bytes_min = 5ULL << 20;    // but for the last part
  static constexpr std::uint32_t parts_max = 10'000;             // numbered from 1
  static constexpr std::size_t page_max = 1000;                  // entries of one list page
};

// ---- values ----

struct Bucket {
  std::string name;
  std::string region;  // as asked at creation
  Time created;
};

// What is kept beside the bytes and given back. Names in lower case: content-type, cache-control,
// content-disposition, content-encoding, content-language, expires, x-amz-meta-*, ... in the order given.
using Attributes = std::vector<std::pair<std::string, std::string>>;

struct Checksum {
  crypto::Digest kind = crypto::Digest::crc32;
  std::string value;       // base64; a composite one ends with "-<parts>"
  bool composite = false;  // digest of the digests of the parts
};

struct ObjectInfo {
  std::string key;
  std::uint64_t size = 0;
  std::string etag;  // without quotes: hex MD5, or hex MD5 of the parts' MD5s and "-<parts>"
  Time modified;
  Attributes attributes;             // empty in lists
  std::optional<Checksum> checksum;  // absent in lists
  std::uint32_t parts = 0;           // 0: written by one PUT
};

// Bytes [offset, offset + length) of one content file.
struct ObjectPiece {
  std::shared_ptr<const UniqueFd> file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// An open object: its bytes stay readable as long as this lives, whatever happens to the key. Goes before its
// store does.
class OpenObject {
 public:
  virtual ~OpenObject() = default;
  virtual const ObjectInfo& info() const = 0;
  virtual std::size_t piece_count() const = 0;  // 0 for an empty object
  virtual std::uint64_t piece_length(std::size_t index) const = 0;
  virtual Result<ObjectPiece> piece(std::size_t index) const = 0;  // opens the file when first asked
};

// ---- writing ----

// Digests that the bytes must have, raw.
struct ExpectedDigest {
  crypto::Digest kind = crypto::Digest::md5;
  std::string raw;
};

// Bytes to store, pulled on the caller's thread.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to buffer.size() bytes; 0 at the end. An error stops the write with source_failed.
  virtual Result<std::size_t> read(std::span<char> buffer) = 0;
  // Asked after the end: digests that came behind the bytes (HTTP trailers). Their kinds must be among
  // PutOptions::checksum, md5 and `expected`.
  virtual Result<std::vector<ExpectedDigest>> trailing_digests() { return std::vector<ExpectedDigest>{}; }
};

// The state of the key that a write demands; failing is precondition_failed (no_such_key where If-Match
// finds nothing).
struct Condition {
  bool absent = false;              // If-None-Match: *
  std::optional<std::string> etag;  // If-Match: this ETag, without quotes, or "*"
};

struct PutOptions {
  Attributes attributes;
  std::optional<std::uint64_t> size;       // announced length
  std::vector<ExpectedDigest> expected;    // checked before anything shows
  std::optional<crypto::Digest> checksum;  // computed and kept with the object
  Condition condition;
};

struct Written {
  std::string etag;
  std::optional<Checksum> checksum;
  Time modified;
};

struct CopyOptions {
  std::optional<Attributes> replace;       // nullopt: the source's
  std::optional<std::string> source_etag;  // copy only if the source still has it
  Condition condition;                     // of the target
};

// ---- listing ----

struct ListQuery {
  std::string prefix;
  std::string delimiter;  // keys that hold it behind the prefix are rolled up; empty: none are
  std::string after;      // exclusive: the last key or common prefix seen
  std::size_t max = ObjectLimits::page_max;
};

struct ListPage {
  std::vector<ObjectInfo> objects;
  std::vector<std::string> prefixes;
  bool truncated = false;
  std::string next;  // `after` of the next page when truncated
};

// ---- multipart ----

struct UploadOptions {
  Attributes attributes;
  std::optional<crypto::Digest> checksum;
  bool full_object_checksum = false;  // CRCs only: of the whole instead of composite
};

struct UploadInfo {
  std::string id;
  std::string key;
  Time created;
  std::optional<crypto::Digest> checksum;
  bool full_object_checksum = false;
};

struct PartInfo {
  std::uint32_t number = 0;
  std::uint64_t size = 0;
  std::string etag;
  std::optional<Checksum> checksum;
  Time modified;
};

struct CompletedPart {
  std::uint32_t number = 0;
  std::string etag;                     // without quotes
  std::optional<std::string> checksum;  // base64
};

struct CompleteOptions {
  std::optional<Checksum> checksum;   // what the whole must have; a composite one with or without "-<parts>"
  std::optional<std::uint64_t> size;  // what the whole must have
  Condition condition;
};

struct PartPage {
  UploadInfo upload;
  std::vector<PartInfo> parts;
  bool truncated = false;
};

struct UploadQuery {
  std::string prefix;
  std::string after_key;  // with after_upload: exclusive position in the order (key, upload)
  std::string after_upload;
  std::size_t max = ObjectLimits::page_max;
};

struct UploadPage {
  std::vector<UploadInfo> uploads;
  bool truncated = false;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  virtual ObjectResult<void> create_bucket(const Bucket& bucket) = 0;  // bucket_exists
  virtual ObjectResult<void> remove_bucket(
      std::string_view bucket) = 0;  // bucket_not_empty; drops open uploads
  virtual ObjectResult<Bucket> bucket(std::string_view name) = 0;
  virtual ObjectResult<std::vector<Bucket>> buckets() = 0;  // by name

  virtual ObjectResult<Written> put(std::string_view bucket, std::string_view key, ByteSource& source,
                                    const PutOptions& options, Time now) = 0;
  virtual ObjectResult<ObjectInfo> head(std::string_view bucket, std::string_view key) = 0;
  virtual ObjectResult<std::unique_ptr<OpenObject>> get(std::string_view bucket, std::string_view key) = 0;
  // Absent: success.
  virtual ObjectResult<void> remove(std::string_view bucket, std::string_view key,
                                    const Condition& condition) = 0;
  // Many at once, in one transaction; at most 1,000. Absent ones: success.
  virtual ObjectResult<void> remove_all(std::string_view bucket, std::span<const std::string> keys) = 0;
  virtual ObjectResult<ListPage> list(std::string_view bucket, const ListQuery& query) = 0;
  // No byte moves: both keys share the content.
  virtual ObjectResult<Written> copy(std::string_view from_bucket, std::string_view from_key,
                                     std::string_view to_bucket, std::string_view to_key,
                                     const CopyOptions& options, Time now) = 0;

  virtual ObjectResult<UploadInfo> create_upload(std::string_view bucket, std::string_view key,
                                                 const UploadOptions& options, Time now) = 0;
  virtual ObjectResult<UploadInfo> upload(std::string_view bucket, std::string_view key,
                                          std::string_view id) = 0;
  // Replaces a part of the same number. `options`: size, expected; checksum: computed and answered, but kept
  // only if it is the upload's, which goes before it.
  virtual ObjectResult<Written> put_part(std::string_view bucket, std::string_view key, std::string_view id,
                                         std::uint32_t number, ByteSource& source, const PutOptions& options,
                                         Time now) = 0;
  // The object becomes the list of its parts: no byte moves. Repeating a completed call answers its result.
  virtual ObjectResult<Written> complete_upload(std::string_view bucket, std::string_view key,
                                                std::string_view id, std::span<const CompletedPart> parts,
                                                const CompleteOptions& options, Time now) = 0;
  virtual ObjectResult<void> abort_upload(std::string_view bucket, std::string_view key,
                                          std::string_view id) = 0;
  // Aborts, in every bucket, the uploads that were begun before `before` and got no part since; answers how
  // many.
  virtual ObjectResult<std::size_t> abort_idle_uploads(Time before) = 0;
  virtual ObjectResult<PartPage> list_parts(std::string_view bucket, std::string_view key,
                                            std::string_view id, std::uint32_t after, std::size_t max) = 0;
  virtual ObjectResult<UploadPage> list_uploads(std::string_view bucket, const UploadQuery& query) = 0;
};

}  // namespace muster::ports
