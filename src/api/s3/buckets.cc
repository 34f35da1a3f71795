#include <algorithm>
#include <pugixml.hpp>

#include "api/s3/detail/body.h"
#include "api/s3/detail/handlers.h"
#include "api/s3/detail/xml.h"
#include "base/text.h"

namespace muster::api::s3 {
namespace {

bool looks_like_address(std::string_view name) {
  const auto parts = split(name, '.');
  return parts.size() == 4 && std::all_of(parts.begin(), parts.end(), [](std::string_view part) {
           const auto number = parse_int(part);
           return number && *number >= 0 && *number <= 255;
         });
}

// What AWS answers for a property of a bucket that was never set: an error, or a document.
struct Unset {
  const char* parameter;
  const char* code;
  const char* message;
};
constexpr Unset kUnset[] = {
    {"policy", "NoSuchBucketPolicy", "The bucket policy does not exist"},
    {"tagging", "NoSuchTagSet", "The TagSet does not exist"},
    {"cors", "NoSuchCORSConfiguration", "The CORS configuration does not exist"},
    {"lifecycle", "NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"},
    {"encryption", "ServerSideEncryptionConfigurationNotFoundError",
     "The server side encryption configuration was not found"},
    {"website", "NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration"},
    {"object-lock", "ObjectLockConfigurationNotFoundError",
     "Object Lock configuration does not exist for this bucket"},
    {"publicAccessBlock", "NoSuchPublicAccessBlockConfiguration",
     "The public access block configuration was not found"},
    {"ownershipControls", "OwnershipControlsNotFoundError", "The bucket ownership controls were not found"},
    {"replication", "ReplicationConfigurationNotFoundError", "The replication configuration was not found"},
};
struct EmptyDocument {
  const char* parameter;
  const char* root;
};
constexpr EmptyDocument kEmpty[] = {
    {"versioning", "VersioningConfiguration"},
    {"logging", "BucketLoggingStatus"},
    {"notification", "NotificationConfiguration"},
    {"accelerate", "AccelerateConfiguration"},
};

void write_owner(Xml& xml, const char* name, const Caller& caller, const Options& options) {
  xml.open(name).text("ID", caller.account).text("DisplayName", options.owner_name).close();
}

net::Response access_control(const Caller& caller, const Options& options) {
  Xml xml("AccessControlPolicy");
  write_owner(xml, "Owner", caller, options);
  xml.open("AccessControlList").open("Grant").open("Grantee");
  xml.attribute("xmlns:xsi", "http://www.w3.org/2001/XMLSchema-instance")
      .attribute("xsi:type", "CanonicalUser");
  xml.text("ID", caller.account).text("DisplayName", options.owner_name).close();
  xml.text("Permission", "FULL_CONTROL").close().close();
  return xml.response();
}

// "" when the body names no region.
ApiResult<std::string> wanted_region(const std::string& body) {
  if (body.empty()) return std::string();
  pugi::xml_document document;
  const auto parsed = document.load_buffer(body.data(), body.size());
  if (!parsed || std::string_view(document.document_element().name()) != "CreateBucketConfiguration") {
    return refuse("MalformedXML",
                  "The XML you provided was not well-formed or did not validate against our published "
                  "schema: expected CreateBucketConfiguration");
  }
  return std::string(document.document_element().child("LocationConstraint").text().as_string());
}

}  // namespace

ApiResult<void> check_bucket_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  };
  const bool right = name.size() >= 3 && name.size() <= 63 &&
                     std::all_of(name.begin(), name.end(), allowed) && name.front() != '-' &&
                     name.front() != '.' && name.back() != '-' && name.back() != '.' &&
                     name.find("..") == std::string_view::npos && !looks_like_address(name);
  if (right) return {};
  return refuse("InvalidBucketName",
                "The specified bucket is not valid: " + std::string(name) +
                    ". A name has 3 to 63 lower-case letters, digits, hyphens and dots, begins and "
                    "ends with a letter or digit, and is not an IP address");
}

Handlers::Answer Handlers::list_buckets(const Context& context) const {
  auto buckets = store_.buckets();
  if (!buckets) return refuse_fault(buckets.error());
  const auto prefix = context.query.get("prefix");
  const auto after = context.query.get("continuation-token");
  MUSTER_TRY(const auto max, context.query.number("max-buckets", 10'000));
  Xml xml("ListAllMyBucketsResult");
  write_owner(xml, "Owner", context.caller, options_);
  xml.open("Buckets");
  std::size_t shown = 0;
  std::string last;
  bool truncated = false;
  for (const auto& bucket : *buckets) {
    if (bucket.name.rfind(prefix, 0) != 0 || (!after.empty() && bucket.name <= after)) continue;
    truncated = shown == max;
    if (truncated) break;
    xml.open("Bucket").text("Name", bucket.name).text("CreationDate", format_iso8601_millis(bucket.created));
    xml.text("BucketRegion", bucket.region).close();
    last = bucket.name;
    ++shown;
  }
  xml.close();
  if (!prefix.empty()) xml.text("Prefix", prefix);
  if (truncated) xml.text("ContinuationToken", last);
  return xml.response();
}

Handlers::Answer Handlers::create_bucket(const Context& context) const {
  MUSTER_CHECK(check_bucket_name(context.target.bucket));
  MUSTER_TRY(const auto body, small_body(context));
  MUSTER_TRY(auto region, wanted_region(body));
  const bool named = !region.empty();
  if (!named) region = options_.region;
  auto made = store_.create_bucket({context.target.bucket, region, context.caller.now});
  // In us-east-1 making one's own bucket again succeeds; elsewhere it is an error.
  if (!made && !(made.error().fault == ports::ObjectFault::bucket_exists && region == "us-east-1")) {
    if (made.error().fault == ports::ObjectFault::bucket_exists) {
      return refuse("BucketAlreadyOwnedByYou",
                    "Your previous request to create the named bucket succeeded and you already own it.",
                    409);
    }
    return refuse_fault(made.error());
  }
  net::Response response;
  response.headers.set("Location", "/" + context.target.bucket);
  return response;
}

Handlers::Answer Handlers::head_bucket(const Context& context) const {
  auto bucket = store_.bucket(context.target.bucket);
  if (!bucket) return refuse_fault(bucket.error());
  net::Response response;
  response.headers.set("x-amz-bucket-region", bucket->region);
  response.headers.set("x-amz-access-point-alias", "false");
  response.headers.set("Content-Type", "application/xml");
  return response;
}

Handlers::Answer Handlers::delete_bucket(const Context& context) const {
  auto removed = store_.remove_bucket(context.target.bucket);
  if (!removed) return refuse_fault(removed.error());
  net::Response response;
  response.status = 204;
  return response;
}

Handlers::Answer Handlers::bucket_property(const Context& context) const {
  auto bucket = store_.bucket(context.target.bucket);
  if (!bucket) return refuse_fault(bucket.error());
  if (context.query.has("location")) {
    // us-east-1 is the empty constraint.
    return Xml("LocationConstraint").content(bucket->region == "us-east-1" ? "" : bucket->region).response();
  }
  if (context.query.has("acl")) return access_control(context.caller, options_);
  if (context.query.has("requestPayment")) {
    return Xml("RequestPaymentConfiguration").text("Payer", "BucketOwner").response();
  }
  for (const auto& empty : kEmpty) {
    if (context.query.has(empty.parameter)) return Xml(empty.root).response();
  }
  for (const auto& unset : kUnset) {
    if (context.query.has(unset.parameter)) return refuse(unset.code, unset.message, 404);
  }
  return not_implemented(context);
}

Handlers::Answer Handlers::object_property(const Context& context) const {
  auto info = store_.head(context.target.bucket, context.target.key);
  if (!info) return refuse_fault(info.error());
  if (context.query.has("acl")) return access_control(context.caller, options_);
  return Xml("Tagging").open("TagSet").close().response();
}

}  // namespace muster::api::s3
