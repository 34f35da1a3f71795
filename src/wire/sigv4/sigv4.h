// AWS Signature Version 4: canonical form, sign, verify, presigned queries, and the SigV2 presigned queries
// that current clients still make for S3 on an http endpoint.
//
// Pure: no clock, no key store, no I/O; free of state, so safe from any thread. Used by api/auth (verify),
// data/s3 and cli (sign). aws-chunked bodies are in aws_chunked.h.
//
// The path rule follows the service of the scope: S3 does not normalise the path and encodes it once
// (verify() also takes a signature of the path as it was sent); every other service normalises it (dot
// segments, double slashes) and encodes what was sent once more.
//
// Verifying, in the order api/auth needs it:
//   parse(request)            -> Claim: who says to have signed, when, for which scope   (or none: unsigned)
//   check_time(claim, now)    -> is the date within the skew, is the presigned URL still good
//   look up the secret of claim.access_key (claim.session_token for temporary credentials)
//   verify(claim, secret, request, payload_hash)
// where payload_hash is claim.payload_hash if it is not empty (S3 always declares it; compare it with the
// hash of the body when the body has been read), else payload_hash_of(body).
//
// Source: "Create a signed AWS API request" and "Authenticating Requests (AWS Signature Version 4)", AWS
// docs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/time.h"

namespace muster::wire::sigv4 {

// A request as it is on the wire. headers: net::Headers::all() fits.
struct RequestView {
  std::string_view method;
  std::string_view path;   // raw: escapes as sent
  std::string_view query;  // raw, without '?'
  std::span<const std::pair<std::string, std::string>> headers;
};

struct Scope {
  std::string date;     // 20261129
  std::string region;   // us-east-1
  std::string service;  // s3, sagemaker, ...
  bool operator==(const Scope&) const = default;
};

enum class Scheme {
  header,    // Authorization: AWS4-HMAC-SHA256 ...
  query,     // ?X-Amz-Algorithm=AWS4-HMAC-SHA256&...
  query_v2,  // ?AWSAccessKeyId=...&Signature=...&Expires=...   S3 GET, HEAD and PUT only
};

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// What a signed request says about itself; nothing of it is believed before verify().
struct Claim {
  Scheme scheme = Scheme::header;
  std::string access_key;
  Scope scope;                              // query_v2: service "s3", region and date empty
  std::vector<std::string> signed_headers;  // lower case; query_v2: empty
  Time time;                                // when it was signed; query_v2: not known, 0
  std::optional<Time> expires_at;           // presigned only
  std::string signature;                    // as sent
  std::string session_token;                // X-Amz-Security-Token of header or query; "" if none
  // x-amz-content-sha256 as sent: 64 hex digits, UNSIGNED-PAYLOAD or a STREAMING-... word. A presigned S3
  // query without it is UNSIGNED-PAYLOAD. Empty: the hash of the body counts.
  std::string payload_hash;
};

// nullopt: the request is not signed. invalid_argument: it carries a signature that is malformed or
// incomplete; the message names the part. unsupported: another algorithm (SigV4a, SigV2 in the header).
Result<std::optional<Claim>> parse(const RequestView& request);

enum class TimeCheck {
  ok,
  skewed,   // header: the date is more than `skew` from now  (RequestTimeTooSkewed)
  early,    // presigned: signed in the future                (AccessDenied "Request is not valid yet")
  expired,  // presigned: past its end                        (AccessDenied "Request has expired")
};
TimeCheck check_time(const Claim& claim, Time now, Millis skew = std::chrono::minutes(15));

// Constant time in the signature. unauthenticated: the signature does not match (SignatureDoesNotMatch).
// permission_denied: an x-amz-* header of the request is not among the signed ones (AccessDenied).
Result<void> verify(const Claim& claim, std::string_view secret_key, const RequestView& request,
                    std::string_view payload_hash);

// Lower-case hex of SHA-256.
std::string payload_hash_of(std::string_view body);

// ---- signing ----

struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // "" for long-lived keys
};

// The headers to add to `request` (which already has Host, and Content-Type if any): X-Amz-Date,
// X-Amz-Security-Token, for S3 also X-Amz-Content-SHA256, and Authorization. All headers given are signed,
// except those that proxies and transports change (Connection, Expect, User-Agent, ...).
std::vector<std::pair<std::string, std::string>> sign(const RequestView& request,
                                                      const Credentials& credentials, std::string_view region,
                                                      std::string_view service, Time now,
                                                      std::string_view payload_hash);

// The whole query of a presigned URL (existing parameters included). request.headers must hold Host; each
// header given is signed. expires: 1 s to 7 days.
std::string presign(const RequestView& request, const Credentials& credentials, std::string_view region,
                    std::string_view service, Time now, Millis expires);
// The same for SigV2, S3 only. `expires_at` is absolute.
std::string presign_v2(const RequestView& request, const Credentials& credentials, Time expires_at);

// ---- parts, for tests, chunk signatures and error answers that show them ----

std::string canonical_request(const RequestView& request, const Scope& scope,
                              const std::vector<std::string>& signed_headers, Scheme scheme,
                              std::string_view payload_hash);
std::string string_to_sign(Time time, const Scope& scope, std::string_view canonical_request);
// Raw 32 bytes.
std::string signing_key(std::string_view secret_key, const Scope& scope);

}  // namespace muster::wire::sigv4
