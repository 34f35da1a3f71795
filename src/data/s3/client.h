// S3 client: signed requests, retries, and the operations that Muster needs, path style.
//
// Thread-safe; calls block. Each request is signed when it is sent, has its body hashed (SHA-256 signed,
// CRC32C as a checksum header that the server verifies and keeps), and is retried with full jitter on 5xx,
// 429, broken connections and time-outs, within a budget shared by all requests of the client. With
// Retry::away_max a refused or reset connection, or no answer within the time-out, counts as "the endpoint is
// away" and is waited out besides that budget.
//
// Errors: not_found (NoSuchKey, NoSuchBucket, 404), permission_denied, unauthenticated (signature, unknown
// key), failed_precondition (If-Match, BucketNotEmpty), already_exists (bucket), invalid_argument,
// unavailable (retries used up), timeout, corrupt (checksum), cancelled. Messages name operation, s3:// place
// and the server's code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/crypto.h"
#include "base/error.h"
#include "base/s3_uri.h"
#include "base/time.h"
#include "data/s3/credentials.h"
#include "net/http.h"

namespace muster::data::s3 {

struct Retry {
  int attempts_max = 10;  // of one request, the first included
  int budget = 200;       // retries that the client may be ahead of its successes
  Millis delay_base{50};  // the n-th retry waits a random time up to delay_base * 2^n, at most delay_max
  Millis delay_max{5'000};
  Millis away_max{0};  // how long an endpoint that is away is waited out; 0: an ordinary failure
  Millis away_delay_max{1'000};
};

struct ClientOptions {
  std::string endpoint;  // http://HOST:PORT
  std::string region = "us-east-1";
  std::shared_ptr<CredentialsProvider> credentials;
  int connections_max = 16;
  Millis timeout{30'000};  // without progress
  Retry retry;
  const Clock* clock = nullptr;  // nullptr: the machine's
};

// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, and credentials_from().
Result<ClientOptions> options_from(const Environment& environment);

using Place = S3Location;

struct Checksum {
  crypto::Digest kind = crypto::Digest::crc32c;
  std::string value;  // base64
  int parts = 0;      // > 0: composite, the digest of the digests of so many parts
};

struct ObjectInfo {
  std::string key;
  std::uint64_t size = 0;
  std::string etag;  // without quotes
  Time modified;
  std::optional<Checksum>
      checksum;  // of head_object and whole get_object, if the server has one that we know
};

struct ListRequest {
  std::string bucket;
  std::string prefix;
  std::string delimiter;  // "" or "/"
  std::string start_after;
  int page_size = 1000;
};
struct ListPage {
  std::vector<ObjectInfo> objects;
  std::vector<std::string> common_prefixes;
};

struct ByteRange {
  std::uint64_t first = 0;
  std::uint64_t length = 0;  // at least 1
};
struct GetOptions {
  std::optional<ByteRange> range;
  std::string if_match;  // ETag without quotes; failed_precondition when the object is another one by now
};
struct GetResult {
  ObjectInfo info;  // size: of the whole object
  std::uint64_t bytes = 0;
  net::Headers headers;
};

struct PutOptions {
  std::string content_type;
  std::vector<std::pair<std::string, std::string>> metadata;  // x-amz-meta- is put in front
  bool if_none_match = false;  // only if there is no such object: failed_precondition otherwise
};

// A body: text, or a range of an open file that is sent without being loaded.
using Body = std::variant<std::string, net::FileRange>;

struct Part {
  int number = 1;
  std::string etag;
  std::string crc32c;  // base64
};

struct BucketInfo {
  std::string name;
  Time created;
};

class Client {
 public:
  virtual ~Client() = default;
  using Sink = net::Client::Sink;

  // Every page, in order; an error of `page` ends the listing.
  virtual Result<void> list_objects(const ListRequest& request,
                                    const std::function<Result<void>(ListPage)>& page) = 0;

  // Bytes go to `sink` as they come. A connection that breaks in the middle goes on where it broke, with
  // If-Match: the bytes are those of one version. A whole object is checked against its checksum, if the
  // server tells one.
  virtual Result<GetResult> get_object(const Place& place, const GetOptions& options, const Sink& sink) = 0;
  Result<std::string> get_text(const Place& place, std::uint64_t bytes_max = 64ULL << 20);
  virtual Result<ObjectInfo> head_object(const Place& place) = 0;
  // Bytes of one part of an object that was uploaded in parts.
  virtual Result<std::uint64_t> part_size(const Place& place, int number) = 0;
  virtual Result<std::string> put_object(const Place& place, const Body& body,
                                         const PutOptions& options = {}) = 0;  // ETag
  virtual Result<void> delete_object(const Place& place) = 0;
  // Up to 1,000 keys a request. Answers the keys that were not deleted, with the reason.
  virtual Result<std::vector<std::pair<std::string, Error>>> delete_objects(
      const std::string& bucket, const std::vector<std::string>& keys) = 0;
  virtual Result<std::string> copy_object(const Place& from, const Place& to) = 0;  // ETag; up to 5 GiB

  virtual Result<std::string> create_upload(const Place& place,
                                            const PutOptions& options = {}) = 0;  // upload id
  virtual Result<Part> upload_part(const Place& place, const std::string& upload_id, int number,
                                   const Body& body) = 0;
  virtual Result<std::string> complete_upload(const Place& place, const std::string& upload_id,
                                              const std::vector<Part>& parts) = 0;  // ETag
  virtual Result<void> abort_upload(const Place& place, const std::string& upload_id) = 0;

  // A bucket that is there and ours already is fine.
  virtual Result<void> create_bucket(const std::string& name) = 0;
  virtual Result<void> delete_bucket(const std::string& name) = 0;
  virtual Result<bool> bucket_exists(const std::string& name) = 0;
  virtual Result<std::vector<BucketInfo>> list_buckets() = 0;

  // Ends all calls, in flight and later, with `cancelled`.
  virtual void cancel() = 0;

  static Result<std::unique_ptr<Client>> create(ClientOptions options);
};

}  // namespace muster::data::s3
