#include "api/s3/detail/request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/text.h"

namespace muster::api::s3 {
namespace {

constexpr std::size_t kMetadataBytesMax = 2048;
constexpr std::array kKeptHeaders = {"content-type",     "cache-control",    "content-disposition",
                                     "content-encoding", "content-language", "expires"};
constexpr std::array kChecksums = {crypto::Digest::crc32, crypto::Digest::crc32c, crypto::Digest::crc64nvme,
                                   crypto::Digest::sha1, crypto::Digest::sha256};

// A position in a Range: digits only. One too large for 64 bits is past the end of every object.
std::optional<std::uint64_t> parse_position(std::string_view text) {
  std::uint64_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error == std::errc::invalid_argument) return std::nullopt;
  return error == std::errc() ? value : std::numeric_limits<std::uint64_t>::max();
}

std::optional<std::string> decode_query(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return percent_decode(spaced);
}

// "aws-chunked,gzip" -> "gzip": the framing is the transfer's, not the object's.
std::string without_aws_chunked(std::string_view encoding) {
  std::vector<std::string> kept;
  for (const auto part : split(encoding, ',')) {
    if (!iequals(trim(part), "aws-chunked")) kept.emplace_back(trim(part));
  }
  return join(kept, ",");
}

std::size_t digest_bytes(crypto::Digest kind) {
  switch (kind) {
    case crypto::Digest::md5:
      return 16;
    case crypto::Digest::sha1:
      return 20;
    case crypto::Digest::sha256:
      return 32;
    case crypto::Digest::crc64nvme:
      return 8;
    default:
      return 4;
  }
}

std::optional<std::string> decode_digest(crypto::Digest kind, std::string_view text) {
  auto raw = crypto::base64_decode(text);
  if (!raw || raw->size() != digest_bytes(kind)) return std::nullopt;
  return raw;
}

}  // namespace

ApiResult<Query> Query::parse(std::string_view raw) {
  Query query;
  if (raw.empty()) return query;
  for (const auto part : split(raw, '&')) {
    if (part.empty()) continue;
    const auto equals = part.find('=');
    auto name = decode_query(part.substr(0, equals));
    auto value = decode_query(equals == std::string_view::npos ? "" : part.substr(equals + 1));
    if (!name || !value || !is_utf8(*name) || !is_utf8(*value)) {
      return refuse("InvalidURI",
                    "Couldn't parse the specified URI: broken escape in the query at " + to_utf8_lossy(part));
    }
    query.all_.emplace_back(std::move(*name), std::move(*value));
  }
  return query;
}

const std::string* Query::find(std::string_view name) const {
  for (const auto& [key, value] : all_) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string Query::get(std::string_view name) const {
  const auto* value = find(name);
  return value == nullptr ? "" : *value;
}

std::optional<std::string> Query::maybe(std::string_view name) const {
  const auto* value = find(name);
  if (value == nullptr) return std::nullopt;
  return *value;
}

ApiResult<std::uint64_t> Query::number(std::string_view name, std::uint64_t otherwise) const {
  const auto* text = find(name);
  if (text == nullptr || text->empty()) return otherwise;
  const auto value = parse_int(*text);
  if (!value || *value < 0 || *value > 2147483647) {
    return refuse("InvalidArgument", "Argument " + std::string(name) +
                                         " must be an integer between 0 and 2147483647, not " + *text);
  }
  return static_cast<std::uint64_t>(*value);
}

ApiResult<Target> parse_target(std::string_view path) {
  if (path.empty() || path.front() != '/') {
    return refuse("InvalidURI", "Couldn't parse the specified URI: the path does not begin with /");
  }
  path.remove_prefix(1);
  const auto slash = path.find('/');
  const auto bucket = percent_decode(path.substr(0, slash));
  const auto key = percent_decode(slash == std::string_view::npos ? "" : path.substr(slash + 1));
  if (!bucket || !key || !is_utf8(*bucket) || !is_utf8(*key)) {
    return refuse("InvalidURI", "Couldn't parse the specified URI: it has a broken escape or is not UTF-8");
  }
  if (key->size() > ports::ObjectLimits::key_bytes_max) {
    return refuse("KeyTooLongError", "Your key is too long: " + std::to_string(key->size()) +
                                         " bytes, at most 1024 are allowed");
  }
  return Target{.bucket = *bucket, .key = *key};
}

ApiResult<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t size) {
  constexpr std::string_view kUnit = "bytes=";
  header = trim(header);
  if (header.substr(0, kUnit.size()) != kUnit) return std::nullopt;
  const auto spec = trim(header.substr(kUnit.size()));
  const auto dash = spec.find('-');
  // Several ranges, or none that can be read: the whole object, as S3 does.
  if (dash == std::string_view::npos || spec.find(',') != std::string_view::npos) return std::nullopt;
  const auto from = trim(spec.substr(0, dash));
  const auto to = trim(spec.substr(dash + 1));
  const auto first = parse_position(from);
  const auto last = parse_position(to);
  if ((!from.empty() && !first) || (!to.empty() && !last) || (!first && !last)) return std::nullopt;
  const auto unsatisfiable = [] {
    return refuse("InvalidRange", "The requested range is not satisfiable", 416);
  };
  if (!first) {
    const auto length = std::min(*last, size);
    if (length == 0) return unsatisfiable();
    return ByteRange{size - length, length};
  }
  if (last && *last < *first) return std::nullopt;
  if (*first >= size) return unsatisfiable();
  const auto end = last ? std::min(*last, size - 1) : size - 1;
  return ByteRange{*first, end - *first + 1};
}

std::string unquote(std::string_view etag) {
  etag = trim(etag);
  if (etag.substr(0, 2) == "W/") etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

ApiResult<ports::Attributes> attributes_of(const net::Headers& headers) {
  ports::Attributes out;
  for (const auto* name : kKeptHeaders) {
    std::string value(headers.get(name));
    if (std::string_view(name) == "content-encoding") value = without_aws_chunked(value);
    if (!value.empty()) out.emplace_back(name, value);
  }
  std::size_t bytes = 0;
  for (const auto& [name, value] : headers.all()) {
    const auto lower = to_lower(name);
    if (lower.rfind("x-amz-meta-", 0) != 0) continue;
    bytes += lower.size() - std::string_view("x-amz-meta-").size() + value.size();
    const auto at =
        std::find_if(out.begin(), out.end(), [&](const auto& pair) { return pair.first == lower; });
    if (at == out.end()) {
      out.emplace_back(lower, value);
    } else {
      at->second += "," + value;
    }
  }
  if (bytes > kMetadataBytesMax) {
    return refuse("MetadataTooLarge",
                  "Your metadata headers have " + std::to_string(bytes) + " bytes, at most 2048 are allowed");
  }
  return out;
}

std::string checksum_header(crypto::Digest kind) {
  return "x-amz-checksum-" + to_lower(crypto::to_string(kind));
}

std::string checksum_element(crypto::Digest kind) {
  return "Checksum" + std::string(crypto::to_string(kind));
}

std::optional<crypto::Digest> parse_checksum_kind(std::string_view name) {
  const auto kind = crypto::parse_digest(name);
  if (kind == crypto::Digest::md5) return std::nullopt;
  return kind;
}

ApiResult<Digests> digests_of(const net::Headers& headers) {
  Digests out;
  if (headers.has("content-md5")) {
    auto raw = decode_digest(crypto::Digest::md5, headers.get("content-md5"));
    if (!raw) return refuse("InvalidDigest", "The Content-MD5 you specified is not valid.");
    out.expected.push_back({crypto::Digest::md5, std::move(*raw)});
  }
  const auto trailer = to_lower(headers.get("x-amz-trailer"));
  for (const auto kind : kChecksums) {
    const auto name = checksum_header(kind);
    const bool trailing = trailer == name;
    if (!headers.has(name) && !trailing) continue;
    if (out.keep) {
      return refuse("InvalidRequest",
                    "Expecting a single x-amz-checksum- header. Multiple checksum Types are not "
                    "allowed.");
    }
    out.keep = kind;
    if (trailing) continue;
    auto raw = decode_digest(kind, headers.get(name));
    if (!raw) return refuse("InvalidRequest", "Value for " + name + " header is invalid.");
    out.expected.push_back({kind, std::move(*raw)});
  }
  const auto algorithm = headers.get("x-amz-sdk-checksum-algorithm");
  if (!algorithm.empty() && !out.keep) {
    return refuse("InvalidRequest",
                  "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or "
                  "x-amz-trailer headers were found.");
  }
  return out;
}

ApiResult<ports::Condition> write_condition(const net::Headers& headers) {
  ports::Condition condition;
  if (headers.has("if-none-match")) {
    if (trim(headers.get("if-none-match")) != "*") {
      return refuse("NotImplemented", "If-None-Match of a write takes only *, not an ETag", 501);
    }
    condition.absent = true;
  }
  if (headers.has("if-match")) condition.etag = unquote(headers.get("if-match"));
  return condition;
}

ApiResult<void> refuse_unsupported(const Context& context) {
  for (const auto& [name, value] : context.head.headers.all()) {
    const auto lower = to_lower(name);
    const bool locked = lower.rfind("x-amz-object-lock-", 0) == 0;
    const bool customer_key = lower.find("server-side-encryption-customer-") != std::string::npos;
    if (locked || customer_key || (lower == "x-amz-tagging" && !value.empty())) {
      return refuse("NotImplemented",
                    "A header you provided implies functionality that is not implemented: " + name +
                        ". Objects here have no tags, locks or customer keys",
                    501);
    }
    if (lower == "x-amz-acl" && value != "private" && value != "bucket-owner-full-control") {
      return refuse("AccessControlListNotSupported",
                    "The bucket does not allow ACLs: x-amz-acl may be private or "
                    "bucket-owner-full-control, not " +
                        value);
    }
  }
  const auto version = context.query.maybe("versionId");
  if (version && *version != "null") {
    return refuse("NoSuchVersion", "The specified version does not exist: buckets here keep no versions",
                  404);
  }
  return {};
}

}  // namespace muster::api::s3
