#include <algorithm>
#include <pugixml.hpp>

#include "api/s3/detail/body.h"
#include "api/s3/detail/handlers.h"
#include "api/s3/detail/xml.h"
#include "base/text.h"

namespace muster::api::s3 {
namespace {

tl::unexpected<ApiError> malformed(std::string_view why) {
  return refuse("MalformedXML",
                "The XML you provided was not well-formed or did not validate against our published "
                "schema: " +
                    std::string(why));
}

ApiResult<std::vector<ports::CompletedPart>> parse_parts(const std::string& body) {
  pugi::xml_document document;
  const auto parsed = document.load_buffer(body.data(), body.size());
  if (!parsed) return malformed(parsed.description());
  const auto root = document.document_element();
  if (std::string_view(root.name()) != "CompleteMultipartUpload")
    return malformed("expected CompleteMultipartUpload");
  std::vector<ports::CompletedPart> out;
  for (const auto part : root.children("Part")) {
    const auto number = parse_int(trim(part.child("PartNumber").text().as_string()));
    if (!number || *number < 1 || *number > std::int64_t{ports::ObjectLimits::parts_max}) {
      return malformed("PartNumber must be an integer between 1 and 10000");
    }
    if (!part.child("ETag")) return malformed("Part " + std::to_string(*number) + " has no ETag");
    ports::CompletedPart one{.number = static_cast<std::uint32_t>(*number),
                             .etag = unquote(part.child("ETag").text().as_string()),
                             .checksum = {}};
    for (const auto child : part.children()) {
      constexpr std::string_view kPrefix = "Checksum";
      const std::string_view name = child.name();
      if (name.substr(0, kPrefix.size()) == kPrefix && parse_checksum_kind(name.substr(kPrefix.size()))) {
        one.checksum = child.text().as_string();
      }
    }
    out.push_back(std::move(one));
  }
  if (out.empty()) return malformed("You must specify at least one part");
  return out;
}

}  // namespace

Handlers::Answer Handlers::create_upload(const Context& context) const {
  MUSTER_TRY(auto attributes, attributes_of(context.head.headers));
  const auto algorithm = context.header("x-amz-checksum-algorithm");
  const auto type = context.header("x-amz-checksum-type");
  ports::UploadOptions options{.attributes = std::move(attributes), .checksum = {}};
  if (!algorithm.empty()) {
    options.checksum = parse_checksum_kind(algorithm);
    if (!options.checksum) {
      return refuse("InvalidRequest",
                    "Checksum algorithm provided is unsupported: " + std::string(algorithm) +
                        ". Please try again with any of the valid types: CRC32, CRC32C, CRC64NVME, "
                        "SHA1, SHA256");
    }
  }
  const bool crc64 = options.checksum == crypto::Digest::crc64nvme;
  const bool sha = options.checksum == crypto::Digest::sha1 || options.checksum == crypto::Digest::sha256;
  if (!type.empty() && type != "FULL_OBJECT" && type != "COMPOSITE") {
    return refuse("InvalidRequest", "Value for x-amz-checksum-type header is invalid: " + std::string(type));
  }
  if ((type == "FULL_OBJECT" && sha) || (type == "COMPOSITE" && crc64) ||
      (!type.empty() && !options.checksum)) {
    return refuse("InvalidRequest", "The " + std::string(type) + " checksum type cannot be used with the " +
                                        (algorithm.empty() ? "missing" : std::string(algorithm)) +
                                        " checksum algorithm.");
  }
  options.full_object_checksum = type == "FULL_OBJECT" || crc64;
  auto upload = store_.create_upload(context.target.bucket, context.target.key, options, context.caller.now);
  if (!upload) return refuse_fault(upload.error());
  Xml xml("InitiateMultipartUploadResult");
  xml.text("Bucket", context.target.bucket).text("Key", context.target.key).text("UploadId", upload->id);
  auto response = xml.response();
  if (options.checksum) {
    response.headers.set("x-amz-checksum-algorithm", crypto::to_string(*options.checksum));
    response.headers.set("x-amz-checksum-type", options.full_object_checksum ? "FULL_OBJECT" : "COMPOSITE");
  }
  return response;
}

Handlers::Answer Handlers::put_part(const Context& context) const {
  MUSTER_TRY(const auto number, context.query.number("partNumber", 0));
  MUSTER_TRY(const auto length, content_length(context));
  MUSTER_TRY(auto digests, digests_of(context.head.headers));
  if (digests.keep) {
    auto upload = store_.upload(context.target.bucket, context.target.key, context.query.get("uploadId"));
    if (!upload) return refuse_fault(upload.error());
    if (upload->checksum && *upload->checksum != *digests.keep) {
      return refuse("InvalidRequest",
                    "Checksum Type mismatch occurred, expected checksum Type: " +
                        to_lower(crypto::to_string(*upload->checksum)) +
                        ", actual checksum Type: " + to_lower(crypto::to_string(*digests.keep)));
    }
  }
  BodySource source(context);
  auto written = store_.put_part(context.target.bucket, context.target.key, context.query.get("uploadId"),
                                 static_cast<std::uint32_t>(number), source,
                                 {.attributes = {},
                                  .size = length,
                                  .expected = std::move(digests.expected),
                                  .checksum = digests.keep,
                                  .condition = {}},
                                 context.caller.now);
  if (!written) return refuse_fault(written.error(), source);
  net::Response response;
  response.headers.set("ETag", quoted(written->etag));
  if (written->checksum)
    response.headers.set(checksum_header(written->checksum->kind), written->checksum->value);
  return response;
}

Handlers::Answer Handlers::complete_upload(const Context& context) const {
  MUSTER_TRY(const auto body, small_body(context, false));
  MUSTER_TRY(const auto parts, parse_parts(body));
  ports::CompleteOptions options;
  MUSTER_TRY(options.condition, write_condition(context.head.headers));
  for (const auto kind : {crypto::Digest::crc32, crypto::Digest::crc32c, crypto::Digest::crc64nvme,
                          crypto::Digest::sha1, crypto::Digest::sha256}) {
    const auto value = context.header(checksum_header(kind));
    if (!value.empty()) options.checksum = ports::Checksum{.kind = kind, .value = std::string(value)};
  }
  if (const auto size = context.header("x-amz-mp-object-size"); !size.empty()) {
    const auto value = parse_int(size);
    if (!value || *value < 0)
      return refuse("InvalidRequest", "Value for x-amz-mp-object-size header is invalid.");
    options.size = static_cast<std::uint64_t>(*value);
  }
  auto written = store_.complete_upload(context.target.bucket, context.target.key,
                                        context.query.get("uploadId"), parts, options, context.caller.now);
  if (!written) return refuse_fault(written.error());
  Xml xml("CompleteMultipartUploadResult");
  xml.text("Location", options_.endpoint_url + "/" + context.target.bucket + "/" +
                           percent_encode(context.target.key, "/"));
  xml.text("Bucket", context.target.bucket)
      .text("Key", context.target.key)
      .text("ETag", quoted(written->etag));
  if (written->checksum) {
    xml.text(checksum_element(written->checksum->kind).c_str(), written->checksum->value);
    xml.text("ChecksumType", written->checksum->composite ? "COMPOSITE" : "FULL_OBJECT");
  }
  return xml.response();
}

Handlers::Answer Handlers::abort_upload(const Context& context) const {
  auto aborted =
      store_.abort_upload(context.target.bucket, context.target.key, context.query.get("uploadId"));
  if (!aborted) return refuse_fault(aborted.error());
  net::Response response;
  response.status = 204;
  return response;
}

Handlers::Answer Handlers::list_parts(const Context& context) const {
  MUSTER_TRY(const auto after, context.query.number("part-number-marker", 0));
  MUSTER_TRY(const auto wanted, context.query.number("max-parts", ports::ObjectLimits::page_max));
  const auto max = std::min<std::size_t>(static_cast<std::size_t>(wanted), ports::ObjectLimits::page_max);
  auto page = store_.list_parts(context.target.bucket, context.target.key, context.query.get("uploadId"),
                                static_cast<std::uint32_t>(after), max);
  if (!page) return refuse_fault(page.error());
  Xml xml("ListPartsResult");
  xml.text("Bucket", context.target.bucket).text("Key", context.target.key).text("UploadId", page->upload.id);
  for (const auto* role : {"Initiator", "Owner"}) {
    xml.open(role).text("ID", context.caller.account).text("DisplayName", options_.owner_name).close();
  }
  xml.text("StorageClass", "STANDARD").number("PartNumberMarker", after);
  if (!page->parts.empty()) xml.number("NextPartNumberMarker", page->parts.back().number);
  xml.number("MaxParts", max).flag("IsTruncated", page->truncated);
  if (page->upload.checksum) {
    xml.text("ChecksumAlgorithm", crypto::to_string(*page->upload.checksum));
    xml.text("ChecksumType", page->upload.full_object_checksum ? "FULL_OBJECT" : "COMPOSITE");
  }
  for (const auto& part : page->parts) {
    xml.open("Part").number("PartNumber", part.number);
    xml.text("LastModified", format_iso8601_millis(part.modified)).text("ETag", quoted(part.etag));
    xml.number("Size", part.size);
    if (part.checksum) xml.text(checksum_element(part.checksum->kind).c_str(), part.checksum->value);
    xml.close();
  }
  return xml.response();
}

}  // namespace muster::api::s3
