// Every secret that Muster makes: access keys, session credentials of jobs, and runner tokens.
//
// Long-lived access keys are records of the control plane; their secrets are sealed by keys/master, a file of
// 32 random bytes (0600) made at first start. Session credentials and runner tokens are stateless: sealed
// text that says who, for which launch and until when. Thread-safe; immutable after make.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/time.h"
#include "domain/commit.h"
#include "domain/ids.h"
#include "ports/secrets.h"
#include "wire/sigv4/sigv4.h"

namespace muster::api {

class Keyring final : public ports::Secrets {
 public:
  // Reads `path`, or makes it. corrupt when the file is not 32 bytes; permission_denied when it may be read
  // by others.
  static Result<Keyring> load(const std::string& path);

  // A new long-lived key and its record.
  struct NewKey {
    wire::sigv4::Credentials credentials;
    domain::AccessKey record;
  };
  NewKey make_key(std::string user, Time now) const;
  Result<std::string> secret_of(const domain::AccessKey& key) const;

  // Credentials of the job of a launch. Their access key begins with ASIA; the token carries the rest.
  struct Session {
    domain::LaunchId launch;
    std::string role_arn;
    Time expires;
    wire::sigv4::Credentials credentials;
  };
  Session make_session(const domain::LaunchId& launch, std::string role_arn, Time expires) const;
  // unauthenticated: not made here, or not for this access key. Expiry is the caller's to check.
  Result<Session> open_session(std::string_view access_key, std::string_view token) const;

  std::string runner_token(const domain::LaunchId& id, Time now) override;
  Result<domain::LaunchId> open_runner_token(std::string_view token) const;

 private:
  explicit Keyring(std::string master) : master_(std::move(master)) {}
  std::string master_;  // 32 bytes
};

}  // namespace muster::api
