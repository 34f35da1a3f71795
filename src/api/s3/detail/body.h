// The bodies of S3 requests: streamed into the store, or whole and small; checked against what was signed.
// One request is one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "api/api.h"
#include "api/s3/detail/request.h"
#include "api/s3/service.h"
#include "base/crypto.h"
#include "net/http.h"
#include "ports/object_store.h"

namespace muster::api::s3 {

// InvalidArgument for an x-amz-content-sha256 that says nothing this server could check or may leave
// unchecked.
ApiResult<void> check_declared(const Payload& payload);

// The announced length of the content: Content-Length, or x-amz-decoded-content-length of an aws-chunked
// body. MissingContentLength.
ApiResult<std::uint64_t> content_length(const Context& context);

// Pulls the body of a request for the store. After a write failed with source_failed, refusal() is the
// answer.
class BodySource final : public ports::ByteSource {
 public:
  explicit BodySource(const Context& context);
  Result<std::size_t> read(std::span<char> buffer) override;
  Result<std::vector<ports::ExpectedDigest>> trailing_digests() override;
  ApiError refusal() const;

 private:
  Result<std::size_t> read_decoded(std::span<char> buffer);
  Error refuse_with(std::string code, int status, Error error);

  net::BodyReader& reader_;
  std::string trailer_;      // announced: must come
  std::string signed_hash_;  // "" when not checked
  std::optional<crypto::Hasher> hasher_;
  std::unique_ptr<wire::sigv4::AwsChunkedDecoder> decoder_;
  std::string decoded_;  // decoded and not yet given
  std::size_t given_ = 0;
  std::optional<ApiError> refusal_;
};

// The whole body of a request that does not stream, decoded and checked. XAmzContentSHA256Mismatch,
// BadDigest. checksums: whether x-amz-checksum-* are of this body (in CompleteMultipartUpload they are the
// object's).
ApiResult<std::string> small_body(const Context& context, bool checksums = true);

}  // namespace muster::api::s3
