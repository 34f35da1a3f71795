#include "api/s3/detail/handlers.h"
#include "api/s3/detail/xml.h"
#include "base/crypto.h"
#include "base/text.h"

namespace muster::api::s3 {
namespace {

// How keys are shown: as they are, or percent-encoded for clients that asked for it.
class KeyText {
 public:
  static ApiResult<KeyText> of(const Query& query) {
    const auto type = query.get("encoding-type");
    if (!type.empty() && type != "url") {
      return refuse("InvalidArgument",
                    "Invalid Encoding Method specified in Request: " + type + ", only url is known");
    }
    return KeyText(!type.empty());
  }
  std::string operator()(const std::string& key) const { return encoded_ ? percent_encode(key, "/") : key; }
  bool encoded() const { return encoded_; }

 private:
  explicit KeyText(bool encoded) : encoded_(encoded) {}
  bool encoded_;
};

void write_entries(Xml& xml, const ports::ListPage& page, const KeyText& key_text, const Context& context,
                   const Options& options, bool owner) {
  for (const auto& object : page.objects) {
    xml.open("Contents").text("Key", key_text(object.key));
    xml.text("LastModified", format_iso8601_millis(object.modified)).text("ETag", quoted(object.etag));
    xml.number("Size", object.size).text("StorageClass", "STANDARD");
    if (owner) {
      xml.open("Owner").text("ID", context.caller.account).text("DisplayName", options.owner_name).close();
    }
    xml.close();
  }
  for (const auto& prefix : page.prefixes) {
    xml.open("CommonPrefixes").text("Prefix", key_text(prefix)).close();
  }
}

ApiResult<std::size_t> page_size(const Query& query, std::string_view name) {
  MUSTER_TRY(const auto wanted, query.number(name, ports::ObjectLimits::page_max));
  return std::min<std::size_t>(static_cast<std::size_t>(wanted), ports::ObjectLimits::page_max);
}

}  // namespace

Handlers::Answer Handlers::list_objects_v2(const Context& context) const {
  const auto& query = context.query;
  MUSTER_TRY(const auto key_text, KeyText::of(query));
  MUSTER_TRY(const auto max, page_size(query, "max-keys"));
  ports::ListQuery wanted{.prefix = query.get("prefix"),
                          .delimiter = query.get("delimiter"),
                          .after = query.get("start-after"),
                          .max = max};
  const auto token = query.maybe("continuation-token");
  if (token) {
    auto after = crypto::base64url_decode(*token);
    if (token->empty() || !after || !is_utf8(*after)) {
      return refuse("InvalidArgument", "The continuation token provided is incorrect");
    }
    wanted.after = *std::move(after);
  }
  auto page = store_.list(context.target.bucket, wanted);
  if (!page) return refuse_fault(page.error());
  Xml xml("ListBucketResult");
  xml.text("Name", context.target.bucket).text("Prefix", key_text(wanted.prefix));
  if (token) xml.text("ContinuationToken", *token);
  if (query.has("start-after")) xml.text("StartAfter", key_text(query.get("start-after")));
  xml.number("KeyCount", page->objects.size() + page->prefixes.size()).number("MaxKeys", max);
  if (!wanted.delimiter.empty()) xml.text("Delimiter", key_text(wanted.delimiter));
  if (key_text.encoded()) xml.text("EncodingType", "url");
  xml.flag("IsTruncated", page->truncated);
  if (page->truncated) xml.text("NextContinuationToken", crypto::base64url(page->next));
  write_entries(xml, *page, key_text, context, options_, query.get("fetch-owner") == "true");
  return xml.response();
}

Handlers::Answer Handlers::list_objects_v1(const Context& context) const {
  const auto& query = context.query;
  MUSTER_TRY(const auto key_text, KeyText::of(query));
  MUSTER_TRY(const auto max, page_size(query, "max-keys"));
  const ports::ListQuery wanted{.prefix = query.get("prefix"),
                                .delimiter = query.get("delimiter"),
                                .after = query.get("marker"),
                                .max = max};
  auto page = store_.list(context.target.bucket, wanted);
  if (!page) return refuse_fault(page.error());
  Xml xml("ListBucketResult");
  xml.text("Name", context.target.bucket).text("Prefix", key_text(wanted.prefix));
  xml.text("Marker", key_text(wanted.after)).number("MaxKeys", max);
  if (!wanted.delimiter.empty()) xml.text("Delimiter", key_text(wanted.delimiter));
  if (key_text.encoded()) xml.text("EncodingType", "url");
  xml.flag("IsTruncated", page->truncated);
  // AWS gives NextMarker only with a delimiter; without one clients go on from the last key.
  if (page->truncated && !wanted.delimiter.empty()) xml.text("NextMarker", key_text(page->next));
  write_entries(xml, *page, key_text, context, options_, true);
  return xml.response();
}

Handlers::Answer Handlers::list_uploads(const Context& context) const {
  const auto& query = context.query;
  MUSTER_TRY(const auto key_text, KeyText::of(query));
  MUSTER_TRY(const auto max, page_size(query, "max-uploads"));
  if (!query.get("delimiter").empty()) {
    return refuse("NotImplemented",
                  "ListMultipartUploads has no delimiter here; prefix, markers and max-uploads work", 501);
  }
  const ports::UploadQuery wanted{.prefix = query.get("prefix"),
                                  .after_key = query.get("key-marker"),
                                  .after_upload = query.get("upload-id-marker"),
                                  .max = max};
  auto page = store_.list_uploads(context.target.bucket, wanted);
  if (!page) return refuse_fault(page.error());
  Xml xml("ListMultipartUploadsResult");
  xml.text("Bucket", context.target.bucket).text("KeyMarker", key_text(wanted.after_key));
  xml.text("UploadIdMarker", wanted.after_upload).text("Prefix", key_text(wanted.prefix));
  if (page->truncated && !page->uploads.empty()) {
    xml.text("NextKeyMarker", key_text(page->uploads.back().key));
    xml.text("NextUploadIdMarker", page->uploads.back().id);
  }
  xml.number("MaxUploads", max);
  if (key_text.encoded()) xml.text("EncodingType", "url");
  xml.flag("IsTruncated", page->truncated);
  for (const auto& upload : page->uploads) {
    xml.open("Upload").text("Key", key_text(upload.key)).text("UploadId", upload.id);
    for (const auto* role : {"Initiator", "Owner"}) {
      xml.open(role).text("ID", context.caller.account).text("DisplayName", options_.owner_name).close();
    }
    xml.text("StorageClass", "STANDARD").text("Initiated", format_iso8601_millis(upload.created));
    if (upload.checksum) {
      xml.text("ChecksumAlgorithm", crypto::to_string(*upload.checksum));
      xml.text("ChecksumType", upload.full_object_checksum ? "FULL_OBJECT" : "COMPOSITE");
    }
    xml.close();
  }
  return xml.response();
}

}  // namespace muster::api::s3
