#include "api/auth/auth.h"

#include "base/crypto.h"

namespace muster::api {

using wire::sigv4::TimeCheck;

wire::sigv4::RequestView view_of(const net::RequestHead& head) {
  return {head.method, head.path, head.query, head.headers.all()};
}

std::string new_request_id() {
  const auto raw = crypto::hex(crypto::random_bytes(16));
  return raw.substr(0, 8) + "-" + raw.substr(8, 4) + "-" + raw.substr(12, 4) + "-" + raw.substr(16, 4) + "-" +
         raw.substr(20);
}

namespace {

bool is_s3(const wire::sigv4::Claim& claim) { return claim.scope.service == "s3"; }

tl::unexpected<ApiError> unknown_key(const wire::sigv4::Claim& claim) {
  const std::string message = "access key " + claim.access_key.substr(0, 64) +
                              " is not known here; the exports of `muster env` are good for this service";
  return is_s3(claim) ? refuse("InvalidAccessKeyId", message, 403)
                      : refuse("InvalidClientTokenId", message, 403);
}

}  // namespace

Authenticator::Authenticator(service::Service& service, const Keyring& keyring, const Clock& clock,
                             Identity identity)
    : service_(service), keyring_(keyring), clock_(clock), identity_(std::move(identity)) {}

ApiResult<Signed> Authenticator::identify(const net::RequestHead& head) {
  auto claim = wire::sigv4::parse(view_of(head));
  if (!claim) return refuse("IncompleteSignature", claim.error().message, 400);
  if (!*claim) {
    return refuse("MissingAuthenticationToken",
                  "the request is not signed; sign it with the keys of `muster env`", 403);
  }
  Signed signer;
  signer.claim = *std::move(*claim);
  signer.caller.account = identity_.account;
  signer.caller.access_key = signer.claim.access_key;
  signer.caller.region = identity_.region;
  signer.caller.request_id = new_request_id();
  signer.caller.now = clock_.now();
  switch (wire::sigv4::check_time(signer.claim, signer.caller.now)) {
    case TimeCheck::ok:
      break;
    case TimeCheck::skewed:
      return refuse(is_s3(signer.claim) ? "RequestTimeTooSkewed" : "InvalidSignatureException",
                    "the request was signed at " + format_iso8601(signer.claim.time) + ", this service has " +
                        format_iso8601(signer.caller.now) +
                        "; at most 15 min apart are allowed: check the clocks",
                    403);
    case TimeCheck::early:
      return refuse("AccessDenied", "Request is not valid yet", 403);
    case TimeCheck::expired:
      return refuse("AccessDenied", "Request has expired", 403);
  }
  auto known = signer.claim.session_token.empty() ? identify_key(signer) : identify_session(signer);
  if (!known) return tl::unexpected(known.error());
  return signer;
}

ApiResult<void> Authenticator::identify_key(Signed& signer) {
  std::optional<domain::AccessKey> key;
  {
    const std::lock_guard lock(mutex_);
    const auto it = keys_.find(signer.claim.access_key);
    if (it != keys_.end()) key = it->second;
  }
  if (!key) {
    auto found = service_.access_key(signer.claim.access_key);
    if (!found && found.error().code == ErrorCode::not_found) return unknown_key(signer.claim);
    if (!found) return refuse(found.error());
    key = *std::move(found);
    const std::lock_guard lock(mutex_);
    keys_.emplace(key->id, *key);
  }
  auto secret = keyring_.secret_of(*key);
  if (!secret) return refuse(secret.error());
  signer.secret_key = *std::move(secret);
  signer.caller.arn = "arn:aws:iam::" + identity_.account + ":user/" + key->user;
  return {};
}

ApiResult<void> Authenticator::identify_session(Signed& signer) {
  auto session = keyring_.open_session(signer.claim.access_key, signer.claim.session_token);
  if (!session) {
    return refuse(is_s3(signer.claim) ? "InvalidToken" : "UnrecognizedClientException",
                  session.error().message, 403);
  }
  const bool live = service_.live_launch(session->launch).has_value();
  if (session->expires <= signer.caller.now || !live) {
    return refuse(is_s3(signer.claim) ? "ExpiredToken" : "ExpiredTokenException",
                  live ? "the session token expired at " + format_iso8601(session->expires)
                       : "the session token belongs to a job that has ended",
                  is_s3(signer.claim) ? 400 : 403);
  }
  signer.secret_key = session->credentials.secret_key;
  const auto role = session->role_arn.substr(session->role_arn.rfind('/') + 1);
  signer.caller.arn =
      "arn:aws:sts::" + identity_.account + ":assumed-role/" + role + "/" + to_string(session->launch);
  return {};
}

ApiResult<void> Authenticator::verify(const Signed& signer, const net::RequestHead& head,
                                      std::string_view payload_hash) const {
  const auto verified = wire::sigv4::verify(signer.claim, signer.secret_key, view_of(head), payload_hash);
  if (verified) return {};
  if (verified.error().code == ErrorCode::permission_denied) {
    return refuse("AccessDenied", verified.error().message, 403);
  }
  return refuse(is_s3(signer.claim) ? "SignatureDoesNotMatch" : "InvalidSignatureException",
                "the request signature does not match: check the secret key and how the request was signed "
                "(access key " +
                    signer.claim.access_key.substr(0, 64) + ")",
                403);
}

}  // namespace muster::api
