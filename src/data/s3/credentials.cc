#include "data/s3/credentials.h"

#include <cstdlib>
#include <mutex>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "net/http.h"

namespace muster::data::s3 {
namespace {

constexpr Millis kRefreshBefore = std::chrono::minutes(5);
constexpr Millis kFetchTimeout{5'000};

class Static final : public CredentialsProvider {
 public:
  explicit Static(Credentials credentials) : credentials_(std::move(credentials)) {}
  Result<Credentials> get() override { return credentials_; }

 private:
  const Credentials credentials_;
};

class Container final : public CredentialsProvider {
 public:
  Container(ContainerCredentials where, net::Url url, const Clock& clock)
      : where_(std::move(where)),
        path_(url.path),
        clock_(clock),
        client_(net::Client::create(url.host, url.port, 1)) {}

  Result<Credentials> get() override {
    const std::lock_guard lock(mutex_);
    const auto now = clock_.now();
    if (!have_.access_key.empty() && !stale_ && now + kRefreshBefore < expires_) return have_;
    auto fetched = fetch();
    // A failed refresh is no reason to stop while the old ones are still good.
    if (!fetched && !have_.access_key.empty() && !stale_ && now < expires_) return have_;
    if (!fetched)
      return tl::unexpected(fetched.error().with_context("cannot get credentials from " + where_.full_uri));
    return have_;
  }

  void refresh() override {
    const std::lock_guard lock(mutex_);
    stale_ = true;
  }

 private:
  Result<void> fetch() {
    net::ClientRequest request;
    request.target = path_.empty() ? "/" : path_;
    request.timeout = kFetchTimeout;
    auto token = where_.token;
    if (!where_.token_file.empty()) {
      MUSTER_TRY(const auto text, read_file(where_.token_file, 64 << 10));
      token = trim(text);
    }
    if (!token.empty()) request.headers.set("Authorization", token);
    MUSTER_TRY(const auto answer, client_->send(request));
    if (answer.status != 200) {
      return fail(answer.status >= 500 ? ErrorCode::unavailable : ErrorCode::unauthenticated,
                  "the endpoint answered " + std::to_string(answer.status));
    }
    MUSTER_TRY(const auto object, json::parse_object(answer.body));
    MUSTER_TRY(auto access_key, json::get_string(object, "AccessKeyId"));
    MUSTER_TRY(auto secret_key, json::get_string(object, "SecretAccessKey"));
    MUSTER_TRY(auto session_token, json::get_string(object, "Token"));
    MUSTER_TRY(const auto expiration, json::get_string(object, "Expiration"));
    const auto expires = parse_iso8601(expiration);
    if (!expires)
      return fail(ErrorCode::invalid_argument, "Expiration \"" + expiration + "\" is no ISO 8601 time");
    have_ = {std::move(access_key), std::move(secret_key), std::move(session_token)};
    expires_ = *expires;
    stale_ = false;
    return {};
  }

  const ContainerCredentials where_;
  const std::string path_;
  const Clock& clock_;
  const std::unique_ptr<net::Client> client_;
  std::mutex mutex_;
  Credentials have_;
  Time expires_;
  bool stale_ = false;
};

}  // namespace

std::shared_ptr<CredentialsProvider> static_credentials(Credentials credentials) {
  return std::make_shared<Static>(std::move(credentials));
}

Result<std::shared_ptr<CredentialsProvider>> container_credentials(ContainerCredentials where,
                                                                   const Clock& clock) {
  // The query of the URI is part of the target.
  const auto mark = where.full_uri.find('?');
  auto url = net::parse_url(where.full_uri.substr(0, mark));
  if (!url) return tl::unexpected(url.error().with_context("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
  if (mark != std::string::npos) url->path += (url->path.empty() ? "/" : "") + where.full_uri.substr(mark);
  return std::make_shared<Container>(std::move(where), *std::move(url), clock);
}

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

Result<std::shared_ptr<CredentialsProvider>> credentials_from(const Environment& environment,
                                                              const Clock& clock) {
  const auto get = [&](std::string_view name) { return environment(name).value_or(""); };
  if (const auto key = get("AWS_ACCESS_KEY_ID"); !key.empty()) {
    const auto secret = get("AWS_SECRET_ACCESS_KEY");
    if (secret.empty())
      return fail(ErrorCode::unauthenticated, "AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not");
    return static_credentials({key, secret, get("AWS_SESSION_TOKEN")});
  }
  if (const auto uri = get("AWS_CONTAINER_CREDENTIALS_FULL_URI"); !uri.empty()) {
    return container_credentials(
        {uri, get("AWS_CONTAINER_AUTHORIZATION_TOKEN"), get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")},
        clock);
  }
  return fail(ErrorCode::unauthenticated,
              "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
              "AWS_CONTAINER_CREDENTIALS_FULL_URI (in a shell: eval \"$(muster env)\")");
}

}  // namespace muster::data::s3
