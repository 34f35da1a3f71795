// A request as S3 reads it: bucket, key, query, and the headers that several operations share. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api.h"
#include "api/s3/service.h"
#include "net/http.h"
#include "ports/object_store.h"

namespace muster::api::s3 {

// Decoded query parameters, in order. '+' is a space.
class Query {
 public:
  static ApiResult<Query> parse(std::string_view raw);
  bool has(std::string_view name) const { return find(name) != nullptr; }
  std::string get(std::string_view name) const;  // "" when absent
  std::optional<std::string> maybe(std::string_view name) const;
  // InvalidArgument unless it is a whole number from 0 on.
  ApiResult<std::uint64_t> number(std::string_view name, std::uint64_t otherwise) const;

 private:
  const std::string* find(std::string_view name) const;
  std::vector<std::pair<std::string, std::string>> all_;
};

struct Target {
  std::string bucket;  // "" for the service itself
  std::string key;     // "" for the bucket itself
};

// Path style: /bucket/key, the key decoded and otherwise raw. InvalidURI, KeyTooLongError.
ApiResult<Target> parse_target(std::string_view path);

struct Context {
  const net::RequestHead& head;
  const Caller& caller;
  const Payload& payload;
  const Target& target;
  const Query& query;
  net::Request& request;

  std::string_view header(std::string_view name) const { return head.headers.get(name); }
};

// The byte range that `Range` asks for, of an object of `size` bytes, cut off at its end. nullopt: no
// (usable) range, the whole object is meant. InvalidRange when no byte of it is there.
struct ByteRange {
  std::uint64_t first = 0;
  std::uint64_t length = 0;
};
ApiResult<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t size);

// An ETag as clients write it, without quotes and weak mark.
std::string unquote(std::string_view etag);

// content-type, cache-control, ..., x-amz-meta-*. MetadataTooLarge above 2 KiB.
ApiResult<ports::Attributes> attributes_of(const net::Headers& headers);

// Content-MD5 and x-amz-checksum-* of the request, and the kind of checksum to keep. InvalidDigest,
// InvalidRequest.
struct Digests {
  std::vector<ports::ExpectedDigest> expected;
  std::optional<crypto::Digest> keep;
};
ApiResult<Digests> digests_of(const net::Headers& headers);

// The header of a checksum: "x-amz-checksum-crc32".
std::string checksum_header(crypto::Digest kind);
// The XML element of a checksum: "ChecksumCRC32".
std::string checksum_element(crypto::Digest kind);
std::optional<crypto::Digest> parse_checksum_kind(std::string_view name);  // not MD5

// If-Match and If-None-Match of a write. NotImplemented for If-None-Match other than *.
ApiResult<ports::Condition> write_condition(const net::Headers& headers);

// What this server does not do and must not pretend to: SSE-C, object locks, tags, public ACLs, versions.
ApiResult<void> refuse_unsupported(const Context& context);

}  // namespace muster::api::s3
