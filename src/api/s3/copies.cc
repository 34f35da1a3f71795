#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "api/s3/detail/handlers.h"
#include "api/s3/detail/xml.h"
#include "base/text.h"

namespace muster::api::s3 {
namespace {

// "/bucket/key", escaped, with or without the first slash and "?versionId=null".
ApiResult<Target> parse_source(std::string_view header) {
  const auto version = header.find("?versionId=");
  if (version != std::string_view::npos) {
    if (header.substr(version) != "?versionId=null") {
      return refuse("NoSuchVersion", "The specified version does not exist: buckets here keep no versions",
                    404);
    }
    header = header.substr(0, version);
  }
  std::string path(header);
  if (path.empty() || path.front() != '/') path.insert(0, "/");
  // Clients that escape everything write the slash behind the bucket as %2F.
  const auto slash = path.find('/', 1);
  if (slash == std::string::npos) path = percent_decode(path).value_or("");
  auto target = parse_target(path);
  if (target && !target->bucket.empty() && !target->key.empty()) return target;
  return refuse("InvalidArgument",
                "Copy Source must mention the source bucket and key: sourcebucket/sourcekey, not " +
                    std::string(header));
}

ApiResult<void> check_source(const Context& context, const ports::ObjectInfo& info) {
  const auto failed = [] {
    return refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold", 412);
  };
  const auto seconds = info.modified.unix_ms / 1000;
  const auto match = context.header("x-amz-copy-source-if-match");
  const auto none = context.header("x-amz-copy-source-if-none-match");
  const auto modified = parse_http_date(context.header("x-amz-copy-source-if-modified-since"));
  const auto unmodified = parse_http_date(context.header("x-amz-copy-source-if-unmodified-since"));
  if (!match.empty() && unquote(match) != info.etag && match != "*") return failed();
  if (match.empty() && unmodified && seconds > unmodified->unix_ms / 1000) return failed();
  if (!none.empty() && (unquote(none) == info.etag || none == "*")) return failed();
  if (none.empty() && modified && seconds <= modified->unix_ms / 1000) return failed();
  return {};
}

// A byte range of an open object as the body of a part.
class CopySource final : public ports::ByteSource {
 public:
  CopySource(const ports::OpenObject& object, ByteRange range)
      : object_(object), offset_(range.first), left_(range.length) {
    while (index_ < object_.piece_count() && offset_ >= object_.piece_length(index_)) {
      offset_ -= object_.piece_length(index_++);
    }
  }

  Result<std::size_t> read(std::span<char> buffer) override {
    if (left_ == 0) return std::size_t{0};
    if (!piece_.file) {
      MUSTER_TRY(piece_, object_.piece(index_));
    }
    const auto wanted = std::min({std::uint64_t{buffer.size()}, left_, piece_.length - offset_});
    const auto count = ::pread(piece_.file->get(), buffer.data(), static_cast<std::size_t>(wanted),
                               static_cast<off_t>(piece_.offset + offset_));
    if (count < 0) return fail_errno("read the source of a copy");
    if (count == 0) return fail(ErrorCode::corrupt, "the source of a copy is shorter than it should be");
    offset_ += static_cast<std::uint64_t>(count);
    left_ -= static_cast<std::uint64_t>(count);
    if (offset_ == piece_.length) {
      piece_.file.reset();
      offset_ = 0;
      ++index_;
    }
    return static_cast<std::size_t>(count);
  }

 private:
  const ports::OpenObject& object_;
  std::size_t index_ = 0;
  std::uint64_t offset_;
  std::uint64_t left_;
  ports::ObjectPiece piece_;
};

void write_copied(Xml& xml, const ports::Written& written) {
  xml.text("LastModified", format_iso8601_millis(written.modified)).text("ETag", quoted(written.etag));
  if (written.checksum) {
    xml.text(checksum_element(written.checksum->kind).c_str(), written.checksum->value);
    xml.text("ChecksumType", written.checksum->composite ? "COMPOSITE" : "FULL_OBJECT");
  }
}

std::string unhex(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at + 2 <= text.size(); at += 2) {
    unsigned char byte = 0;
    std::from_chars(text.data() + at, text.data() + at + 2, byte, 16);
    out += static_cast<char>(byte);
  }
  return out;
}

// What the bytes of a range must have, as far as it is known: of the whole object. A damaged source must not
// get new digests that fit the damage.
std::vector<ports::ExpectedDigest> known_digests(const ports::ObjectInfo& info, ByteRange range) {
  std::vector<ports::ExpectedDigest> out;
  if (range.length != info.size) return out;
  if (info.parts == 0) out.push_back({crypto::Digest::md5, unhex(info.etag)});
  if (info.checksum && !info.checksum->composite) {
    if (auto raw = crypto::base64_decode(info.checksum->value)) out.push_back({info.checksum->kind, *raw});
  }
  return out;
}

ApiResult<ByteRange> copy_range(const Context& context, std::uint64_t size) {
  const auto header = context.header("x-amz-copy-source-range");
  if (header.empty()) return ByteRange{0, size};
  const auto bad = [&] {
    return refuse("InvalidArgument",
                  "The x-amz-copy-source-range value must be of the form bytes=first-last where first "
                  "and last are the zero-based offsets of the first and last bytes to copy, inside "
                  "the source of " +
                      std::to_string(size) + " bytes: " + std::string(header));
  };
  constexpr std::string_view kUnit = "bytes=";
  const auto dash = header.find('-');
  if (header.substr(0, kUnit.size()) != kUnit || dash == std::string_view::npos) return bad();
  const auto first = parse_int(header.substr(kUnit.size(), dash - kUnit.size()));
  const auto last = parse_int(header.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first || static_cast<std::uint64_t>(*last) >= size)
    return bad();
  return ByteRange{static_cast<std::uint64_t>(*first), static_cast<std::uint64_t>(*last - *first) + 1};
}

}  // namespace

Handlers::Answer Handlers::copy_object(const Context& context) const {
  MUSTER_TRY(const auto source, parse_source(context.header("x-amz-copy-source")));
  MUSTER_TRY(auto condition, write_condition(context.head.headers));
  const auto directive = context.header("x-amz-metadata-directive");
  if (!directive.empty() && directive != "COPY" && directive != "REPLACE") {
    return refuse("InvalidArgument",
                  "Unknown metadata directive: " + std::string(directive) + ", COPY and REPLACE are known");
  }
  const bool replace = directive == "REPLACE";
  if (!replace && source.bucket == context.target.bucket && source.key == context.target.key) {
    return refuse("InvalidRequest",
                  "This copy request is illegal because it is trying to copy an object to itself "
                  "without changing the object's metadata, storage class, website redirect location or "
                  "encryption attributes.");
  }
  auto info = store_.head(source.bucket, source.key);
  if (!info) return refuse_fault(info.error());
  MUSTER_CHECK(check_source(context, *info));
  ports::CopyOptions options{.replace = {}, .source_etag = info->etag, .condition = std::move(condition)};
  if (replace) {
    MUSTER_TRY(options.replace, attributes_of(context.head.headers));
  }
  auto written = store_.copy(source.bucket, source.key, context.target.bucket, context.target.key, options,
                             context.caller.now);
  if (!written) return refuse_fault(written.error());
  Xml xml("CopyObjectResult");
  write_copied(xml, *written);
  return xml.response();
}

Handlers::Answer Handlers::copy_part(const Context& context) const {
  MUSTER_TRY(const auto source, parse_source(context.header("x-amz-copy-source")));
  MUSTER_TRY(const auto number, context.query.number("partNumber", 0));
  auto object = store_.get(source.bucket, source.key);
  if (!object) return refuse_fault(object.error());
  MUSTER_CHECK(check_source(context, (*object)->info()));
  MUSTER_TRY(const auto range, copy_range(context, (*object)->info().size));
  CopySource bytes(**object, range);
  auto written = store_.put_part(context.target.bucket, context.target.key, context.query.get("uploadId"),
                                 static_cast<std::uint32_t>(number), bytes,
                                 {.attributes = {},
                                  .size = range.length,
                                  .expected = known_digests((*object)->info(), range),
                                  .checksum = {},
                                  .condition = {}},
                                 context.caller.now);
  if (!written && (written.error().fault == ports::ObjectFault::bad_digest ||
                   written.error().fault == ports::ObjectFault::source_failed)) {
    return refuse("InternalError",
                  "the content of the source s3://" + source.bucket + "/" + source.key +
                      " is damaged: " + written.error().error.message,
                  500);
  }
  if (!written) return refuse_fault(written.error());
  Xml xml("CopyPartResult");
  write_copied(xml, *written);
  return xml.response();
}

}  // namespace muster::api::s3
