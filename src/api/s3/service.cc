#include "api/s3/service.h"

#include <algorithm>
#include <array>
#include <optional>

#include "api/s3/detail/body.h"
#include "api/s3/detail/handlers.h"
#include "api/s3/detail/request.h"
#include "api/s3/detail/xml.h"
#include "base/text.h"

namespace muster::api::s3 {
namespace {

// Larger than the largest part with its framing: the operation itself answers EntityTooLarge.
constexpr std::uint64_t kStreamBytesMax = 6ULL << 30;

struct Row {
  std::string_view method;
  std::string_view parameter;  // of the query; "" for none
  Handlers::Operation handle;
};

// The first row that fits wins: rows with a parameter come before those without.
constexpr std::array kBucketTable = {
    Row{"GET", "uploads", &Handlers::list_uploads},
    Row{"GET", "location", &Handlers::bucket_property},
    Row{"GET", "versioning", &Handlers::bucket_property},
    Row{"GET", "acl", &Handlers::bucket_property},
    Row{"GET", "policy", &Handlers::bucket_property},
    Row{"GET", "tagging", &Handlers::bucket_property},
    Row{"GET", "cors", &Handlers::bucket_property},
    Row{"GET", "lifecycle", &Handlers::bucket_property},
    Row{"GET", "encryption", &Handlers::bucket_property},
    Row{"GET", "website", &Handlers::bucket_property},
    Row{"GET", "object-lock", &Handlers::bucket_property},
    Row{"GET", "publicAccessBlock", &Handlers::bucket_property},
    Row{"GET", "ownershipControls", &Handlers::bucket_property},
    Row{"GET", "replication", &Handlers::bucket_property},
    Row{"GET", "logging", &Handlers::bucket_property},
    Row{"GET", "notification", &Handlers::bucket_property},
    Row{"GET", "requestPayment", &Handlers::bucket_property},
    Row{"GET", "accelerate", &Handlers::bucket_property},
    Row{"POST", "delete", &Handlers::delete_objects},
    Row{"PUT", "", &Handlers::create_bucket},
    Row{"HEAD", "", &Handlers::head_bucket},
    Row{"DELETE", "", &Handlers::delete_bucket},
};

constexpr std::array kObjectTable = {
    Row{"GET", "uploadId", &Handlers::list_parts},
    Row{"GET", "attributes", &Handlers::get_object_attributes},
    Row{"GET", "acl", &Handlers::object_property},
    Row{"GET", "tagging", &Handlers::object_property},
    Row{"PUT", "uploadId", &Handlers::put_part},
    Row{"POST", "uploads", &Handlers::create_upload},
    Row{"POST", "uploadId", &Handlers::complete_upload},
    Row{"DELETE", "uploadId", &Handlers::abort_upload},
    Row{"GET", "", &Handlers::get_object},
    Row{"HEAD", "", &Handlers::get_object},
    Row{"PUT", "", &Handlers::put_object},
    Row{"DELETE", "", &Handlers::delete_object},
};

// Query parameters that choose another operation, which is not there if no row of the table took it.
constexpr std::array kOtherOperations = {"accelerate",
                                         "acl",
                                         "analytics",
                                         "cors",
                                         "encryption",
                                         "intelligent-tiering",
                                         "inventory",
                                         "lifecycle",
                                         "logging",
                                         "metrics",
                                         "legal-hold",
                                         "notification",
                                         "object-lock",
                                         "ownershipControls",
                                         "policy",
                                         "policyStatus",
                                         "publicAccessBlock",
                                         "replication",
                                         "requestPayment",
                                         "restore",
                                         "retention",
                                         "select",
                                         "tagging",
                                         "torrent",
                                         "versioning",
                                         "versions",
                                         "website",
                                         "attributes",
                                         "uploads",
                                         "delete",
                                         "location",
                                         "session"};

template <std::size_t count>
const Row* find_row(const std::array<Row, count>& table, std::string_view method, const Query& query) {
  const bool other = std::any_of(kOtherOperations.begin(), kOtherOperations.end(),
                                 [&](const char* name) { return query.has(name); });
  for (const auto& row : table) {
    if (row.method != method) continue;
    if (row.parameter.empty() ? !other : query.has(row.parameter)) return &row;
  }
  return nullptr;
}

net::Response respond(const Handlers& handlers, Operation operation, const Caller& caller,
                      const Payload& payload, const Target& target, const Query& query,
                      net::Request& request) {
  const Context context{request.head, caller, payload, target, query, request};
  const auto fail_with = [&](const ApiError& error) {
    auto response = error_response(request.head, caller.request_id, error.status == 0 ? 400 : error.status,
                                   error.code, error.error.message);
    if (!target.key.empty() && error.status == 405)
      response.headers.set("Allow", "GET, HEAD, PUT, POST, DELETE");
    return response;
  };
  const auto owner = context.header("x-amz-expected-bucket-owner");
  if (!owner.empty() && owner != caller.account) {
    return fail_with({Error{ErrorCode::permission_denied, "Access Denied: the bucket belongs to account " +
                                                              caller.account + ", not " + std::string(owner)},
                      "AccessDenied", 403});
  }
  if (auto supported = refuse_unsupported(context); !supported) return fail_with(supported.error());
  auto answer = (handlers.*operation.handle)(context);
  if (!answer) return fail_with(answer.error());
  answer->headers.set("x-amz-request-id", caller.request_id);
  return *std::move(answer);
}

}  // namespace

Payload payload_of(const wire::sigv4::Claim& claim, std::string_view secret_key) {
  Payload payload{.hash = claim.payload_hash, .decoder = {}};
  if (payload.hash.empty()) payload.hash = wire::sigv4::payload_hash_of("");  // as the signature has it
  if (const auto framing = wire::sigv4::framing_of(claim.payload_hash)) {
    payload.decoder = [framing = *framing, claim, secret = std::string(secret_key)] {
      return std::make_unique<wire::sigv4::AwsChunkedDecoder>(framing, claim, secret);
    };
  }
  return payload;
}

Operation operation_of(const net::RequestHead& head, const Target& target, const Query& query) {
  if (target.bucket.empty()) {
    return {head.method == "GET" ? &Handlers::list_buckets : &Handlers::method_not_allowed};
  }
  const bool known = head.method == "GET" || head.method == "HEAD" || head.method == "PUT" ||
                     head.method == "POST" || head.method == "DELETE";
  if (!known) return {&Handlers::method_not_allowed};
  const auto* row = target.key.empty() ? find_row(kBucketTable, head.method, query)
                                       : find_row(kObjectTable, head.method, query);
  if (row == nullptr && target.key.empty() && head.method == "GET" && query.get("list-type") == "2") {
    return {&Handlers::list_objects_v2};
  }
  if (row == nullptr) {
    const bool plain_list = target.key.empty() && head.method == "GET" &&
                            std::none_of(kOtherOperations.begin(), kOtherOperations.end(),
                                         [&](const char* name) { return query.has(name); });
    return {plain_list ? &Handlers::list_objects_v1 : &Handlers::not_implemented};
  }
  const bool copies = head.headers.has("x-amz-copy-source");
  if (row->handle == &Handlers::put_object) {
    return copies ? Operation{&Handlers::copy_object} : Operation{&Handlers::put_object, true};
  }
  if (row->handle == &Handlers::put_part) {
    return copies ? Operation{&Handlers::copy_part} : Operation{&Handlers::put_part, true};
  }
  return {row->handle};
}

net::Route S3Service::route(const net::RequestHead& head, const Caller& caller, Payload payload) const {
  net::Route route;
  route.refuse = [head, id = caller.request_id](int status, std::string_view message) {
    return error_response(head, id, status, status == 413 ? "EntityTooLarge" : "InvalidRequest", message);
  };
  auto target = parse_target(head.path);
  auto query = Query::parse(head.query);
  auto declared = check_declared(payload);
  if (!target || !query || !declared) {
    const auto error = !target ? target.error() : !query ? query.error() : declared.error();
    route.handle = [error, id = caller.request_id](net::Request& request) {
      return error_response(request.head, id, error.status, error.code, error.error.message);
    };
    return route;
  }
  const auto operation = operation_of(head, *target, *query);
  route.streaming = operation.streams;
  if (operation.streams) route.body_max = kStreamBytesMax;
  route.handle = [this, operation, caller, payload = std::move(payload), target = *std::move(target),
                  query = *std::move(query)](net::Request& request) {
    return respond(Handlers(store_, options_), operation, caller, payload, target, query, request);
  };
  return route;
}

net::Response error_response(const net::RequestHead& head, std::string_view request_id, int status,
                             std::string_view code, std::string_view message) {
  net::Response response;
  if (head.method == "HEAD") {
    response.status = status;
  } else {
    Xml xml("Error", "");
    xml.text("Code", code).text("Message", message);
    xml.text("Resource", to_utf8_lossy(percent_decode(head.path).value_or(head.path)));
    xml.text("RequestId", request_id).text("HostId", "muster");
    response = xml.response(status);
  }
  response.headers.set("x-amz-request-id", request_id);
  return response;
}

tl::unexpected<ApiError> refuse_fault(const ports::ObjectError& error) {
  using ports::ObjectFault;
  switch (error.fault) {
    case ObjectFault::no_such_bucket:
      return refuse(error.error, "NoSuchBucket", 404);
    case ObjectFault::no_such_key:
      return refuse(error.error, "NoSuchKey", 404);
    case ObjectFault::no_such_upload:
      return refuse(error.error, "NoSuchUpload", 404);
    case ObjectFault::bucket_exists:
      return refuse(error.error, "BucketAlreadyOwnedByYou", 409);
    case ObjectFault::bucket_not_empty:
      return refuse(error.error, "BucketNotEmpty", 409);
    case ObjectFault::bad_digest:
      return refuse(error.error, "BadDigest", 400);
    case ObjectFault::incomplete_body:
      return refuse(error.error, "IncompleteBody", 400);
    case ObjectFault::entity_too_large:
      return refuse(error.error, "EntityTooLarge", 400);
    case ObjectFault::entity_too_small:
      return refuse(error.error, "EntityTooSmall", 400);
    case ObjectFault::invalid_part:
      return refuse(error.error, "InvalidPart", 400);
    case ObjectFault::invalid_part_order:
      return refuse(error.error, "InvalidPartOrder", 400);
    case ObjectFault::precondition_failed:
      return refuse("PreconditionFailed", "At least one of the pre-conditions you specified did not hold",
                    412);
    // 507 and not 503: asking again at once does not help, and SDKs do not retry it.
    case ObjectFault::storage_full:
      return refuse(error.error, "InsufficientStorage", 507);
    case ObjectFault::source_failed:
    case ObjectFault::other:
      break;
  }
  switch (error.error.code) {
    case ErrorCode::invalid_argument:
      return refuse(error.error, "InvalidArgument", 400);
    case ErrorCode::unavailable:
      return refuse(error.error, "ServiceUnavailable", 503);
    case ErrorCode::resource_exhausted:
      return refuse(error.error, "SlowDown", 503);
    default:
      return refuse(error.error, "InternalError", 500);
  }
}

tl::unexpected<ApiError> refuse_fault(const ports::ObjectError& error, const BodySource& source) {
  if (error.fault == ports::ObjectFault::source_failed) return tl::unexpected(source.refusal());
  return refuse_fault(error);
}

std::string quoted(std::string_view etag) { return '"' + std::string(etag) + '"'; }

void set_checksum(net::Headers& headers, const ports::Checksum& checksum) {
  headers.set(checksum_header(checksum.kind), checksum.value);
  headers.set("x-amz-checksum-type", checksum.composite ? "COMPOSITE" : "FULL_OBJECT");
}

Handlers::Answer Handlers::not_implemented(const Context& context) const {
  return refuse(
      "NotImplemented",
      context.head.method + " /" + context.target.bucket +
          (context.target.key.empty() ? "" : "/" + context.target.key) +
          (context.head.query.empty() ? "" : "?" + context.head.query) +
          " is not implemented. Implemented are the operations on buckets (list, create, head, delete, "
          "location), objects (put, get, head, delete, copy, list, attributes) and multipart uploads",
      501);
}

Handlers::Answer Handlers::method_not_allowed(const Context& context) const {
  return refuse("MethodNotAllowed",
                "The specified method is not allowed against this resource: " + context.head.method, 405);
}

}  // namespace muster::api::s3
