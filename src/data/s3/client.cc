#include "data/s3/client.h"

#include <algorithm>

#include "base/crypto.h"
#include "base/text.h"
#include "data/s3/detail/transport.h"
#include "data/s3/detail/xml.h"

namespace muster::data::s3 {
namespace {

using detail::Call;

// "bytes 5-9/100" -> 100
std::optional<std::uint64_t> total_of_content_range(std::string_view text) {
  const auto total = parse_int(text.substr(std::min(text.size(), text.rfind('/') + 1)));
  if (!text.starts_with("bytes ") || !total || *total < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*total);
}

std::optional<std::uint64_t> first_of_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const auto first = parse_int(text.substr(0, text.find('-')));
  if (!first || *first < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*first);
}

// "sOO8/Q==" of a whole object, "sOO8/Q==-3" of one in three parts.
std::optional<Checksum> checksum_of(const net::Headers& headers) {
  for (const auto kind : {crypto::Digest::crc32c, crypto::Digest::crc64nvme, crypto::Digest::crc32}) {
    const auto value = headers.get("x-amz-checksum-" + to_lower(crypto::to_string(kind)));
    if (value.empty()) continue;
    const auto dash = value.find('-');
    if (dash == std::string_view::npos) return Checksum{kind, std::string(value), 0};
    const auto parts = parse_int(value.substr(dash + 1));
    if (parts && *parts > 0)
      return Checksum{kind, std::string(value.substr(0, dash)), static_cast<int>(*parts)};
  }
  return std::nullopt;
}

ObjectInfo info_of(const Place& place, const net::Headers& headers) {
  ObjectInfo info;
  info.key = place.key;
  info.etag = detail::without_quotes(headers.get("ETag"));
  info.modified = parse_http_date(headers.get("Last-Modified")).value_or(Time{});
  const auto length = parse_int(headers.get("Content-Length")).value_or(0);
  info.checksum = checksum_of(headers);
  info.size =
      total_of_content_range(headers.get("Content-Range")).value_or(static_cast<std::uint64_t>(length));
  return info;
}

Error at(const Place& place, std::string_view operation, ErrorCode code, std::string_view what) {
  return {code, std::string(operation) + " " + to_string(place) + ": " + std::string(what)};
}

class S3Client final : public Client {
 public:
  explicit S3Client(std::unique_ptr<detail::Transport> transport) : transport_(std::move(transport)) {}

  Result<void> list_objects(const ListRequest& request,
                            const std::function<Result<void>(ListPage)>& page) override;
  Result<GetResult> get_object(const Place& place, const GetOptions& options, const Sink& sink) override;
  Result<ObjectInfo> head_object(const Place& place) override;
  Result<std::uint64_t> part_size(const Place& place, int number) override;
  Result<std::string> put_object(const Place& place, const Body& body, const PutOptions& options) override;
  Result<void> delete_object(const Place& place) override;
  Result<std::vector<std::pair<std::string, Error>>> delete_objects(
      const std::string& bucket, const std::vector<std::string>& keys) override;
  Result<std::string> copy_object(const Place& from, const Place& to) override;
  Result<std::string> create_upload(const Place& place, const PutOptions& options) override;
  Result<Part> upload_part(const Place& place, const std::string& upload_id, int number,
                           const Body& body) override;
  Result<std::string> complete_upload(const Place& place, const std::string& upload_id,
                                      const std::vector<Part>& parts) override;
  Result<void> abort_upload(const Place& place, const std::string& upload_id) override;
  Result<void> create_bucket(const std::string& name) override;
  Result<void> delete_bucket(const std::string& name) override;
  Result<bool> bucket_exists(const std::string& name) override;
  Result<std::vector<BucketInfo>> list_buckets() override;
  void cancel() override { transport_->cancel(); }

 private:
  Result<Call> call_with_body(std::string operation, std::string method, const Place& place,
                              const Body& body) const;

  std::unique_ptr<detail::Transport> transport_;
};

// One GET over as many attempts as it takes: each goes on where the last one broke, on the same version.
class ResumedGet {
 public:
  ResumedGet(const Place& place, const GetOptions& options, const Client::Sink& sink)
      : place_(place), options_(options), sink_(sink) {}

  Result<GetResult> run(detail::Transport& transport) {
    Call call{.operation = "GetObject", .place = place_};
    call.prepare = [this](net::Headers& headers) { prepare(headers); };
    call.headers.set("x-amz-checksum-mode", "ENABLED");
    MUSTER_CHECK(transport.send(
        call, [this](std::string_view piece) { return take(piece); },
        [this](int status, const net::Headers& headers) { return begin(status, headers); }));
    if (expected_ && crypto::base64(hasher_->finish()) != expected_->value) {
      return tl::unexpected(at(place_, "GetObject", ErrorCode::corrupt,
                               "the bytes received do not have the " +
                                   std::string(to_string(expected_->kind)) + " " + expected_->value +
                                   " of the object"));
    }
    result_.bytes = delivered_;
    return std::move(result_);
  }

 private:
  std::uint64_t first() const { return (options_.range ? options_.range->first : 0) + delivered_; }

  void prepare(net::Headers& headers) const {
    if (options_.range) {
      const auto last = options_.range->first + options_.range->length - 1;
      headers.set("Range", "bytes=" + std::to_string(first()) + "-" + std::to_string(last));
    } else if (delivered_ > 0) {
      headers.set("Range", "bytes=" + std::to_string(first()) + "-");
    }
    if (!options_.if_match.empty()) headers.set("If-Match", '"' + options_.if_match + '"');
  }

  Result<void> begin(int status, const net::Headers& headers) {
    const auto wrong = [&](std::string_view what) {
      return tl::unexpected(at(place_, "GetObject", ErrorCode::corrupt, what));
    };
    const bool asked_for_range = options_.range || delivered_ > 0;
    const auto range = headers.get("Content-Range");
    if (asked_for_range && (status != 206 || first_of_content_range(range) != first())) {
      return wrong("asked for bytes from " + std::to_string(first()) + ", the server answers " +
                   std::to_string(status) + " with \"" + std::string(range) + "\"");
    }
    if (delivered_ > 0) return {};
    result_.info = info_of(place_, headers);
    result_.headers = headers;
    if (!options_.if_match.empty() && !result_.info.etag.empty() && result_.info.etag != options_.if_match) {
      return wrong("asked for ETag " + options_.if_match + ", got " + result_.info.etag);
    }
    options_.if_match = result_.info.etag;  // of all that follows
    expected_ = options_.range ? std::nullopt : result_.info.checksum;
    if (expected_ && expected_->parts > 0) expected_.reset();  // needs the borders of the parts
    if (expected_) hasher_.emplace(expected_->kind);
    return {};
  }

  Result<void> take(std::string_view piece) {
    if (options_.range && delivered_ + piece.size() > options_.range->length) {
      return tl::unexpected(
          at(place_, "GetObject", ErrorCode::corrupt, "the server sent more than was asked for"));
    }
    MUSTER_CHECK(sink_(piece));
    if (hasher_) hasher_->update(piece);
    delivered_ += piece.size();
    return {};
  }

  const Place& place_;
  GetOptions options_;
  const Client::Sink& sink_;
  GetResult result_;
  std::uint64_t delivered_ = 0;
  std::optional<Checksum> expected_;
  std::optional<crypto::Hasher> hasher_;
};

// ---- objects ----

Result<void> S3Client::list_objects(const ListRequest& request,
                                    const std::function<Result<void>(ListPage)>& page) {
  std::string token;
  for (;;) {
    Call call{.operation = "ListObjectsV2", .place = {request.bucket, ""}};
    call.query = "list-type=2&encoding-type=url&max-keys=" + std::to_string(request.page_size) +
                 "&prefix=" + percent_encode(request.prefix);
    if (!request.delimiter.empty()) call.query += "&delimiter=" + percent_encode(request.delimiter);
    if (!token.empty()) {
      call.query += "&continuation-token=" + percent_encode(token);
    } else if (!request.start_after.empty()) {
      call.query += "&start-after=" + percent_encode(request.start_after);
    }
    MUSTER_TRY(const auto answer, transport_->send(call));
    MUSTER_TRY(auto list, detail::parse_list(answer.body));
    MUSTER_CHECK(page(std::move(list.page)));
    if (!list.truncated) return {};
    token = std::move(list.next_token);
  }
}

Result<GetResult> S3Client::get_object(const Place& place, const GetOptions& options, const Sink& sink) {
  return ResumedGet(place, options, sink).run(*transport_);
}

Result<ObjectInfo> S3Client::head_object(const Place& place) {
  Call call{.operation = "HeadObject", .method = "HEAD", .place = place};
  call.headers.set("x-amz-checksum-mode", "ENABLED");
  const auto answer = transport_->send(call);
  if (answer) return info_of(place, answer->headers);
  if (answer.error().code != ErrorCode::not_found) return tl::unexpected(answer.error());
  // The answer to a HEAD has no body that would tell which of the two is missing.
  const bool bucket = bucket_exists(place.bucket).value_or(true);
  return tl::unexpected(at(place, "HeadObject", ErrorCode::not_found,
                           bucket ? "there is no such object" : "there is no bucket " + place.bucket));
}

Result<std::uint64_t> S3Client::part_size(const Place& place, int number) {
  Call call{.operation = "HeadObject", .method = "HEAD", .place = place};
  call.query = "partNumber=" + std::to_string(number);
  MUSTER_TRY(const auto answer, transport_->send(call));
  const auto length = parse_int(answer.headers.get("Content-Length"));
  if (!length || *length < 0) {
    return tl::unexpected(
        at(place, "HeadObject", ErrorCode::unavailable, "the server told no size of the part"));
  }
  return static_cast<std::uint64_t>(*length);
}

// The body with its hashes in the headers: computed once, whatever the number of attempts.
Result<Call> S3Client::call_with_body(std::string operation, std::string method, const Place& place,
                                      const Body& body) const {
  auto hashes = detail::hashes_of(body);
  if (!hashes) return tl::unexpected(hashes.error().with_context(operation + " " + to_string(place)));
  Call call{.operation = std::move(operation), .method = std::move(method), .place = place};
  call.headers.set("x-amz-content-sha256", hashes->sha256);
  call.headers.set("x-amz-sdk-checksum-algorithm", "CRC32C");
  call.headers.set("x-amz-checksum-crc32c", hashes->crc32c);
  call.body = body;
  return call;
}

void add_put_options(net::Headers& headers, const PutOptions& options) {
  if (!options.content_type.empty()) headers.set("Content-Type", options.content_type);
  for (const auto& [name, value] : options.metadata) headers.set("x-amz-meta-" + name, value);
  if (options.if_none_match) headers.set("If-None-Match", "*");
}

Result<std::string> S3Client::put_object(const Place& place, const Body& body, const PutOptions& options) {
  MUSTER_TRY(auto call, call_with_body("PutObject", "PUT", place, body));
  add_put_options(call.headers, options);
  MUSTER_TRY(const auto answer, transport_->send(call));
  return detail::without_quotes(answer.headers.get("ETag"));
}

Result<void> S3Client::delete_object(const Place& place) {
  MUSTER_CHECK(transport_->send({.operation = "DeleteObject", .method = "DELETE", .place = place}));
  return {};
}

Result<std::vector<std::pair<std::string, Error>>> S3Client::delete_objects(
    const std::string& bucket, const std::vector<std::string>& keys) {
  constexpr std::size_t kBatch = 1000;
  std::vector<std::pair<std::string, Error>> failed;
  std::vector<std::string> named;  // those that a request in XML can name
  for (const auto& key : keys) {
    if (is_xml(key)) {
      named.push_back(key);
    } else if (auto done = delete_object({bucket, key}); !done) {
      failed.emplace_back(key, done.error());
    }
  }
  for (std::size_t from = 0; from < named.size(); from += kBatch) {
    const auto end = std::min(named.size(), from + kBatch);
    const std::vector<std::string> batch(named.begin() + static_cast<std::ptrdiff_t>(from),
                                         named.begin() + static_cast<std::ptrdiff_t>(end));
    MUSTER_TRY(auto call,
               call_with_body("DeleteObjects", "POST", {bucket, ""}, detail::delete_request(batch)));
    call.query = "delete=";
    MUSTER_TRY(const auto answer, transport_->send(call));
    MUSTER_TRY(auto errors, detail::parse_deleted(answer.body));
    for (auto& [key, error] : errors) {
      const auto code = error.code == "AccessDenied" ? ErrorCode::permission_denied : ErrorCode::unavailable;
      failed.emplace_back(std::move(key), Error{code, error.code + ": " + error.message});
    }
  }
  return failed;
}

Result<std::string> S3Client::copy_object(const Place& from, const Place& to) {
  Call call{.operation = "CopyObject", .method = "PUT", .place = to, .error_in_body = true};
  call.headers.set("x-amz-copy-source",
                   "/" + percent_encode(from.bucket) + "/" + percent_encode(from.key, "/"));
  MUSTER_TRY(const auto answer, transport_->send(call));
  return detail::parse_etag(answer.body);
}

// ---- multipart ----

Result<std::string> S3Client::create_upload(const Place& place, const PutOptions& options) {
  Call call{.operation = "CreateMultipartUpload", .method = "POST", .place = place, .query = "uploads="};
  call.headers.set("x-amz-checksum-algorithm", "CRC32C");
  auto without_condition = options;
  without_condition.if_none_match = false;
  add_put_options(call.headers, without_condition);
  MUSTER_TRY(const auto answer, transport_->send(call));
  return detail::parse_upload_id(answer.body);
}

Result<Part> S3Client::upload_part(const Place& place, const std::string& upload_id, int number,
                                   const Body& body) {
  MUSTER_TRY(auto call, call_with_body("UploadPart", "PUT", place, body));
  call.query = "partNumber=" + std::to_string(number) + "&uploadId=" + percent_encode(upload_id);
  MUSTER_TRY(const auto answer, transport_->send(call));
  return Part{number, detail::without_quotes(answer.headers.get("ETag")),
              std::string(call.headers.get("x-amz-checksum-crc32c"))};
}

Result<std::string> S3Client::complete_upload(const Place& place, const std::string& upload_id,
                                              const std::vector<Part>& parts) {
  MUSTER_TRY(auto call,
             call_with_body("CompleteMultipartUpload", "POST", place, detail::complete_request(parts)));
  // These would be taken for the checksum of the object; the body is covered by the signature.
  net::Headers headers;
  headers.set("x-amz-content-sha256", call.headers.get("x-amz-content-sha256"));
  headers.set("Content-Type", "application/xml");
  call.headers = std::move(headers);
  call.query = "uploadId=" + percent_encode(upload_id);
  call.error_in_body = true;
  MUSTER_TRY(const auto answer, transport_->send(call));
  return detail::parse_etag(answer.body);
}

Result<void> S3Client::abort_upload(const Place& place, const std::string& upload_id) {
  MUSTER_CHECK(transport_->send({.operation = "AbortMultipartUpload",
                                 .method = "DELETE",
                                 .place = place,
                                 .query = "uploadId=" + percent_encode(upload_id)}));
  return {};
}

// ---- buckets ----

Result<void> S3Client::create_bucket(const std::string& name) {
  Call call{.operation = "CreateBucket", .method = "PUT", .place = {name, ""}};
  if (const auto& region = transport_->options().region; region != "us-east-1") {
    MUSTER_TRY(call, call_with_body("CreateBucket", "PUT", {name, ""}, detail::location_constraint(region)));
  }
  const auto answer = transport_->send(call);
  const bool ours = !answer && answer.error().message.find("BucketAlreadyOwnedByYou") != std::string::npos;
  if (!answer && !ours) return tl::unexpected(answer.error());
  return {};
}

Result<void> S3Client::delete_bucket(const std::string& name) {
  MUSTER_CHECK(transport_->send({.operation = "DeleteBucket", .method = "DELETE", .place = {name, ""}}));
  return {};
}

Result<bool> S3Client::bucket_exists(const std::string& name) {
  const auto answer = transport_->send({.operation = "HeadBucket", .method = "HEAD", .place = {name, ""}});
  if (answer) return true;
  if (answer.error().code == ErrorCode::not_found) return false;
  return tl::unexpected(answer.error());
}

Result<std::vector<BucketInfo>> S3Client::list_buckets() {
  MUSTER_TRY(const auto answer, transport_->send({.operation = "ListBuckets"}));
  return detail::parse_buckets(answer.body);
}

}  // namespace

Result<std::string> Client::get_text(const Place& place, std::uint64_t bytes_max) {
  std::string text;
  MUSTER_CHECK(get_object(place, {}, [&](std::string_view piece) -> Result<void> {
    if (text.size() + piece.size() > bytes_max) {
      return fail(ErrorCode::resource_exhausted,
                  to_string(place) + " is larger than " + format_bytes(bytes_max));
    }
    text += piece;
    return {};
  }));
  return text;
}

Result<std::unique_ptr<Client>> Client::create(ClientOptions options) {
  MUSTER_TRY(auto transport, detail::Transport::create(std::move(options)));
  return std::make_unique<S3Client>(std::move(transport));
}

Result<ClientOptions> options_from(const Environment& environment) {
  static const SystemClock clock;
  const auto first_of = [&](std::string_view a, std::string_view b) {
    auto value = environment(a).value_or("");
    return value.empty() ? environment(b).value_or("") : value;
  };
  ClientOptions options;
  options.endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  if (options.endpoint.empty()) {
    return fail(ErrorCode::invalid_argument,
                "no endpoint: set AWS_ENDPOINT_URL (in a shell: eval \"$(muster env)\")");
  }
  if (const auto region = first_of("AWS_REGION", "AWS_DEFAULT_REGION"); !region.empty())
    options.region = region;
  MUSTER_TRY(options.credentials, credentials_from(environment, clock));
  return options;
}

}  // namespace muster::data::s3
