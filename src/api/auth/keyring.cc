#include "api/auth/keyring.h"

#include <sys/stat.h>

#include "base/crypto.h"
#include "base/file.h"
#include "base/json.h"

namespace muster::api {
namespace {

constexpr std::size_t kMasterBytes = 32;
// What a sealed text is for: it opens under no other.
constexpr std::string_view kSessionContext = "muster session v1";
constexpr std::string_view kRunnerContext = "muster runner v1";

std::string key_context(std::string_view id) { return "muster access key v1 " + std::string(id); }

std::string random_id(std::string_view prefix) {
  constexpr std::size_t kLength = 20;  // AKIA + 16, all capitals and digits, as the field spells them
  std::string id(prefix);
  while (id.size() < kLength) {
    for (const char c : crypto::random_token(kLength)) {
      if (id.size() < kLength && ((c >= 'A' && c <= 'Z') || (c >= '2' && c <= '7'))) id += c;
    }
  }
  return id;
}

}  // namespace

Result<Keyring> Keyring::load(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if ((info.st_mode & 077) != 0) {
      return fail(ErrorCode::permission_denied,
                  path + " may be read by others; make it private with: chmod 600 " + path);
    }
    MUSTER_TRY(auto master, read_file(path, 4096));
    if (master.size() != kMasterBytes) {
      return fail(ErrorCode::corrupt,
                  path + " has " + std::to_string(master.size()) +
                      " bytes, 32 are needed; restore it from a backup: without it the access "
                      "keys of this data directory cannot be opened");
    }
    return Keyring(std::move(master));
  }
  auto master = crypto::random_bytes(kMasterBytes);
  MUSTER_CHECK(write_file_atomic(path, master, 0600));
  return Keyring(std::move(master));
}

Keyring::NewKey Keyring::make_key(std::string user, Time now) const {
  NewKey made;
  made.credentials.access_key = random_id("AKIA");
  made.credentials.secret_key = crypto::random_token(40);
  made.record.id = made.credentials.access_key;
  made.record.user = std::move(user);
  made.record.created = now;
  made.record.sealed_secret =
      crypto::base64(crypto::seal(master_, made.credentials.secret_key, key_context(made.record.id)));
  return made;
}

Result<std::string> Keyring::secret_of(const domain::AccessKey& key) const {
  const auto sealed = crypto::base64_decode(key.sealed_secret);
  if (!sealed) return fail(ErrorCode::corrupt, "the secret of access key " + key.id + " is damaged");
  return crypto::open(master_, *sealed, key_context(key.id));
}

Keyring::Session Keyring::make_session(const domain::LaunchId& launch, std::string role_arn,
                                       Time expires) const {
  Session session{launch, std::move(role_arn), expires, {}};
  session.credentials.access_key = random_id("ASIA");
  session.credentials.secret_key = crypto::random_token(40);
  json::Object body;
  body["access_key"] = session.credentials.access_key;
  body["secret"] = session.credentials.secret_key;
  body["launch"] = to_string(launch);
  body["role"] = session.role_arn;
  body["expires"] = expires.unix_ms;
  session.credentials.session_token =
      crypto::base64(crypto::seal(master_, json::dump(body), kSessionContext));
  return session;
}

Result<Keyring::Session> Keyring::open_session(std::string_view access_key, std::string_view token) const {
  const auto unknown = [] {
    return fail(ErrorCode::unauthenticated, "the session token was not made by this service");
  };
  const auto sealed = crypto::base64_decode(token);
  if (!sealed) return unknown();
  const auto plain = crypto::open(master_, *sealed, kSessionContext);
  if (!plain) return unknown();
  MUSTER_TRY(const auto body, json::parse_object(*plain));
  const auto launch = domain::parse_launch_id(json::opt_string(body, "launch").value_or(""));
  if (!launch || json::opt_string(body, "access_key") != std::string(access_key)) return unknown();
  Session session{
      *launch,
      json::opt_string(body, "role").value_or(""),
      Time{json::opt_int(body, "expires").value_or(0)},
      {std::string(access_key), json::opt_string(body, "secret").value_or(""), std::string(token)}};
  return session;
}

std::string Keyring::runner_token(const domain::LaunchId& id, Time) {
  return crypto::base64url(crypto::seal(master_, to_string(id), kRunnerContext));
}

Result<domain::LaunchId> Keyring::open_runner_token(std::string_view token) const {
  if (const auto sealed = crypto::base64url_decode(token)) {
    if (const auto plain = crypto::open(master_, *sealed, kRunnerContext)) {
      if (const auto id = domain::parse_launch_id(*plain)) return *id;
    }
  }
  return fail(ErrorCode::unauthenticated, "the runner token was not made by this service");
}

}  // namespace muster::api
