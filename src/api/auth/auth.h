// Who sent a request: SigV4 (and SigV2 presigned S3 queries) against the keys of this service.
//
// In two steps, because the body comes last: identify() looks at the head only (claim, time, key); verify()
// checks the signature once the payload hash is known, for S3 at once, for the others after the body.
//
// Thread-safe. Waits for the control thread the first time that an access key is seen; not for requests that
// are signed with the session of a job: whether its launch lives stands in the last commit.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "api/api.h"
#include "api/auth/keyring.h"
#include "net/http.h"
#include "service/service.h"
#include "wire/sigv4/sigv4.h"

namespace muster::api {

// A request whose signer is known. Not verified until Authenticator::verify has said so.
struct Signed {
  Caller caller;
  wire::sigv4::Claim claim;
  std::string secret_key;
};

// Whom the service speaks for: the account and region of its ARNs.
struct Identity {
  std::string account = "000000000000";
  std::string region = "us-east-1";
};

// "0d8f1c2e-..." for the answer and the log.
std::string new_request_id();

// The parts of a head that are signed.
wire::sigv4::RequestView view_of(const net::RequestHead& head);

class Authenticator {
 public:
  Authenticator(service::Service& service, const Keyring& keyring, const Clock& clock, Identity identity);

  // Errors carry the codes of AWS: MissingAuthenticationToken, IncompleteSignature, InvalidClientTokenId
  // (S3: InvalidAccessKeyId), RequestTimeTooSkewed, ExpiredToken, AccessDenied.
  ApiResult<Signed> identify(const net::RequestHead& head);
  // SignatureDoesNotMatch. `payload_hash`: lower-case hex, or the word that the claim declares.
  ApiResult<void> verify(const Signed& signer, const net::RequestHead& head,
                         std::string_view payload_hash) const;

 private:
  ApiResult<void> identify_session(Signed& signer);
  ApiResult<void> identify_key(Signed& signer);

  service::Service& service_;
  const Keyring& keyring_;
  const Clock& clock_;
  Identity identity_;
  std::mutex mutex_;
  std::map<std::string, domain::AccessKey, std::less<>> keys_;  // seen before; keys never change
};

}  // namespace muster::api
