// S3 (REST-XML) over the object store port: what the aws CLI, boto3 and the SageMaker SDKs use, with the
// answers and errors that AWS sends. Owned by musterd; the store must outlive it. Thread-safe: it keeps
// nothing between requests.
//
// The caller (api/auth) has checked the signature of the head. The body is checked here while it streams:
// against the signed payload hash, Content-MD5 and x-amz-checksum-*.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/api.h"
#include "base/error.h"
#include "net/http.h"
#include "ports/object_store.h"
#include "wire/sigv4/aws_chunked.h"
#include "wire/sigv4/sigv4.h"

namespace muster::api::s3 {

// What the signature says about the body.
struct Payload {
  // x-amz-content-sha256: 64 hex digits are checked; UNSIGNED-PAYLOAD is not. STREAMING-...: `decoder`. A
  // signed request without it has signed an empty body.
  std::string hash;
  // Makes the decoder of an aws-chunked body; empty for plain ones.
  std::function<std::unique_ptr<wire::sigv4::AwsChunkedDecoder>()> decoder;
};
// Of a verified claim.
Payload payload_of(const wire::sigv4::Claim& claim, std::string_view secret_key);

struct Options {
  std::string region = "us-east-1";               // of buckets made without a LocationConstraint
  std::string owner_name = "muster";              // display name of the account
  std::string endpoint_url = "http://127.0.0.1";  // for Location of a completed upload
};

class S3Service {
 public:
  S3Service(ports::ObjectStore& store, Options options) : store_(store), options_(std::move(options)) {}

  net::Route route(const net::RequestHead& head, const Caller& caller, Payload payload) const;

 private:
  ports::ObjectStore& store_;
  const Options options_;
};

// The XML error answer, also for failures before the service is reached (auth): SignatureDoesNotMatch, ...
// `head` gives resource and method (HEAD has no body).
net::Response error_response(const net::RequestHead& head, std::string_view request_id, int status,
                             std::string_view code, std::string_view message);

}  // namespace muster::api::s3
