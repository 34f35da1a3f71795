#include "api/s3/detail/body.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace muster::api::s3 {
namespace {

constexpr std::string_view kMismatch =
    "The provided 'x-amz-content-sha256' header does not match what was computed.";

bool is_hash(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
         });
}

}  // namespace

ApiResult<void> check_declared(const Payload& payload) {
  if (payload.decoder || payload.hash == wire::sigv4::kUnsignedPayload || is_hash(payload.hash)) return {};
  return refuse(
      "InvalidArgument",
      "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, "
      "STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or the sha256 "
      "of the body in 64 hex digits, not \"" +
          clip_characters(payload.hash, 100) + "\"");
}

ApiResult<std::uint64_t> content_length(const Context& context) {
  if (context.payload.decoder) {
    const auto length = parse_int(context.header("x-amz-decoded-content-length"));
    if (length && *length >= 0) return static_cast<std::uint64_t>(*length);
  } else if (context.head.content_length) {
    return *context.head.content_length;
  }
  return refuse("MissingContentLength", "You must provide the Content-Length HTTP header.", 411);
}

BodySource::BodySource(const Context& context) : reader_(*context.request.reader) {
  const auto& payload = context.payload;
  if (payload.decoder) {
    decoder_ = payload.decoder();
    trailer_ = to_lower(context.header("x-amz-trailer"));
  } else if (is_hash(payload.hash)) {
    signed_hash_ = to_lower(payload.hash);
    hasher_.emplace(crypto::Digest::sha256);
  }
}

Error BodySource::refuse_with(std::string code, int status, Error error) {
  refusal_ = ApiError{error, std::move(code), status};
  return error;
}

ApiError BodySource::refusal() const {
  return refusal_.value_or(ApiError{Error{ErrorCode::internal, "the body failed"}, "InternalError", 500});
}

Result<std::size_t> BodySource::read(std::span<char> buffer) {
  auto count = decoder_ ? read_decoded(buffer) : reader_.read(buffer);
  if (!count) {
    if (refusal_) return count;
    const auto& error = count.error();
    switch (error.code) {
      case ErrorCode::timeout:
        return tl::unexpected(refuse_with("RequestTimeout", 400,
                                          {error.code,
                                           "Your socket connection to the server was not read from or "
                                           "written to within the timeout period."}));
      case ErrorCode::resource_exhausted:
        return tl::unexpected(refuse_with("EntityTooLarge", 400, error));
      case ErrorCode::unauthenticated:
        return tl::unexpected(refuse_with("SignatureDoesNotMatch", 403, error));
      case ErrorCode::invalid_argument:
        return tl::unexpected(refuse_with("InvalidRequest", 400, error));
      default:
        return tl::unexpected(refuse_with("IncompleteBody", 400, error));
    }
  }
  if (!hasher_) return count;
  if (*count > 0) {
    hasher_->update({buffer.data(), *count});
    return count;
  }
  const auto hash = crypto::hex(hasher_->finish());
  hasher_.reset();
  if (hash == signed_hash_) return count;
  return tl::unexpected(
      refuse_with("XAmzContentSHA256Mismatch", 400, {ErrorCode::invalid_argument, std::string(kMismatch)}));
}

Result<std::size_t> BodySource::read_decoded(std::span<char> buffer) {
  char raw[64 << 10];
  while (given_ == decoded_.size()) {
    decoded_.clear();
    given_ = 0;
    MUSTER_TRY(const auto count, reader_.read(raw));
    if (count == 0) {
      if (decoder_->finished()) return std::size_t{0};
      return fail(ErrorCode::unavailable,
                  "You did not provide the number of bytes specified by the Content-Length "
                  "HTTP header: the last chunk is missing");
    }
    MUSTER_CHECK(decoder_->feed({raw, count}, decoded_));
  }
  const auto count = std::min(buffer.size(), decoded_.size() - given_);
  std::memcpy(buffer.data(), decoded_.data() + given_, count);
  given_ += count;
  return count;
}

Result<std::vector<ports::ExpectedDigest>> BodySource::trailing_digests() {
  std::vector<ports::ExpectedDigest> out;
  if (!decoder_) return out;
  constexpr std::string_view kPrefix = "x-amz-checksum-";
  bool announced_came = trailer_.empty();
  for (const auto& [name, value] : decoder_->trailers()) {
    announced_came = announced_came || name == trailer_;
    if (name.rfind(kPrefix, 0) != 0) continue;
    const auto kind = parse_checksum_kind(name.substr(kPrefix.size()));
    const auto raw = crypto::base64_decode(trim(value));
    if (!kind || !raw) {
      return tl::unexpected(
          refuse_with("InvalidRequest", 400,
                      {ErrorCode::invalid_argument, "Value for " + name + " trailing header is invalid."}));
    }
    out.push_back({*kind, *raw});
  }
  if (!announced_came) {
    return tl::unexpected(refuse_with("MalformedTrailerError", 400,
                                      {ErrorCode::invalid_argument,
                                       "The request contained trailing data that was not "
                                       "well-formed: " +
                                           trailer_ + " was announced and did not come"}));
  }
  return out;
}

ApiResult<std::string> small_body(const Context& context, bool checksums) {
  std::string body = context.request.body;
  const auto& payload = context.payload;
  std::vector<std::pair<std::string, std::string>> trailers;
  if (payload.decoder) {
    auto decoder = payload.decoder();
    std::string decoded;
    auto fed = decoder->feed(body, decoded);
    if (!fed && fed.error().code == ErrorCode::unauthenticated) {
      return refuse(std::move(fed).error(), "SignatureDoesNotMatch", 403);
    }
    if (!fed) return refuse(std::move(fed).error(), "InvalidRequest", 400);
    if (!decoder->finished()) return refuse("IncompleteBody", "the last chunk of the body is missing");
    trailers = decoder->trailers();
    body = std::move(decoded);
  } else if (is_hash(payload.hash) && crypto::hex(crypto::sha256(body)) != to_lower(payload.hash)) {
    return refuse("XAmzContentSHA256Mismatch", std::string(kMismatch));
  }
  if (!checksums) return body;
  net::Headers headers = context.head.headers;
  for (const auto& [name, value] : trailers) headers.set(name, trim(value));
  if (!trailers.empty()) headers.set("x-amz-trailer", "");
  MUSTER_TRY(const auto digests, digests_of(headers));
  for (const auto& expected : digests.expected) {
    if (crypto::digest(expected.kind, body) != expected.raw) {
      return refuse("BadDigest", "The " + std::string(crypto::to_string(expected.kind)) +
                                     " you specified did not match the calculated checksum.");
    }
  }
  return body;
}

}  // namespace muster::api::s3
