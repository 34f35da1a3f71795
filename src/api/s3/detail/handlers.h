// The operations of S3, one function each: a Context in, an answer or an ApiError out. Thread-safe: they keep
// nothing. Which request is which operation: operation_of().
#pragma once

#include <string>

#include "api/api.h"
#include "api/s3/detail/request.h"
#include "api/s3/service.h"
#include "net/http.h"
#include "ports/object_store.h"

namespace muster::api::s3 {

class Handlers {
 public:
  Handlers(ports::ObjectStore& store, const Options& options) : store_(store), options_(options) {}

  using Answer = ApiResult<net::Response>;
  using Operation = Answer (Handlers::*)(const Context&) const;

  // buckets.cc
  Answer list_buckets(const Context& context) const;
  Answer create_bucket(const Context& context) const;
  Answer head_bucket(const Context& context) const;
  Answer delete_bucket(const Context& context) const;
  Answer bucket_property(
      const Context& context) const;  // ?location, ?versioning, ?acl, ... as AWS answers unset

  // listing.cc
  Answer list_objects_v1(const Context& context) const;
  Answer list_objects_v2(const Context& context) const;
  Answer list_uploads(const Context& context) const;

  // objects.cc
  Answer put_object(const Context& context) const;
  Answer get_object(const Context& context) const;  // HEAD too
  Answer delete_object(const Context& context) const;
  Answer delete_objects(const Context& context) const;
  Answer get_object_attributes(const Context& context) const;
  Answer object_property(const Context& context) const;  // ?acl, ?tagging

  // copies.cc
  Answer copy_object(const Context& context) const;
  Answer copy_part(const Context& context) const;

  // uploads.cc
  Answer create_upload(const Context& context) const;
  Answer put_part(const Context& context) const;
  Answer complete_upload(const Context& context) const;
  Answer abort_upload(const Context& context) const;
  Answer list_parts(const Context& context) const;

  Answer not_implemented(const Context& context) const;
  Answer method_not_allowed(const Context& context) const;

 private:
  ports::ObjectStore& store_;
  const Options& options_;
};

// streams: the body goes to the store as it arrives.
struct Operation {
  Handlers::Operation handle;
  bool streams = false;
};
Operation operation_of(const net::RequestHead& head, const Target& target, const Query& query);

// ---- shared by the operations ----

// The S3 code and status of a fault of the store.
tl::unexpected<ApiError> refuse_fault(const ports::ObjectError& error);
// The same after a streamed write.
class BodySource;
tl::unexpected<ApiError> refuse_fault(const ports::ObjectError& error, const BodySource& source);

std::string quoted(std::string_view etag);
// x-amz-checksum-* and x-amz-checksum-type.
void set_checksum(net::Headers& headers, const ports::Checksum& checksum);
ApiResult<void> check_bucket_name(std::string_view name);

}  // namespace muster::api::s3
