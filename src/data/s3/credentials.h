// Where the keys that sign S3 requests come from: given, or fetched from a container credentials endpoint and
// refreshed before they expire.
//
// Thread-safe: one provider serves all clients of a process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/time.h"
#include "wire/sigv4/sigv4.h"

namespace muster::data::s3 {

using wire::sigv4::Credentials;

class CredentialsProvider {
 public:
  virtual ~CredentialsProvider() = default;
  // May ask the endpoint; answers what it has as long as that has not expired.
  virtual Result<Credentials> get() = 0;
  // The server has called them expired: the next get() fetches new ones.
  virtual void refresh() {}
};

std::shared_ptr<CredentialsProvider> static_credentials(Credentials credentials);

// GET full_uri with `Authorization: token` answers {AccessKeyId, SecretAccessKey, Token, Expiration}. Fetched
// when first needed, and again 5 minutes before they expire. token_file, if not empty, is read at each fetch
// and wins over token. invalid_argument when full_uri is no http URL.
struct ContainerCredentials {
  std::string full_uri;
  std::string token;
  std::string token_file;
};
Result<std::shared_ptr<CredentialsProvider>> container_credentials(ContainerCredentials where,
                                                                   const Clock& clock);

// name -> value; nullopt if not set.
using Environment = std::function<std::optional<std::string>(std::string_view)>;
Environment process_environment();

// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; else AWS_CONTAINER_CREDENTIALS_FULL_URI with
// AWS_CONTAINER_AUTHORIZATION_TOKEN or ..._TOKEN_FILE. unauthenticated, naming the variables, if neither is
// set.
Result<std::shared_ptr<CredentialsProvider>> credentials_from(const Environment& environment,
                                                              const Clock& clock);

}  // namespace muster::data::s3
