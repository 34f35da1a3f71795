#include "runner/credentials.h"

#include "base/crypto.h"
#include "base/json.h"

namespace muster::runner {
namespace {

constexpr Millis kRefreshBefore{600'000};

Result<SessionCredentials> parse(std::string body) {
  MUSTER_TRY(const auto object, json::parse_object(body));
  SessionCredentials out;
  MUSTER_TRY(out.access_key, json::get_string(object, "AccessKeyId"));
  MUSTER_TRY(out.secret_key, json::get_string(object, "SecretAccessKey"));
  MUSTER_TRY(out.token, json::get_string(object, "Token"));
  MUSTER_TRY(const auto expiration, json::get_string(object, "Expiration"));
  const auto expires = parse_iso8601(expiration);
  if (!expires) return fail(ErrorCode::invalid_argument, "Expiration is no time: " + expiration);
  out.expires = *expires;
  out.json = std::move(body);
  return out;
}

net::Response answer(int status, std::string body) {
  net::Response response;
  response.status = status;
  response.headers.set("Content-Type", "application/json");
  response.body = std::move(body);
  return response;
}

net::Response refusal(int status, const std::string& message) {
  return answer(status, json::dump(json::Object{{"message", message}}));
}

}  // namespace

Result<SessionCredentials> CredentialsCache::get() {
  const std::lock_guard lock(mutex_);  // one fetch at a time: the others wait for its answer
  const auto now = clock_.now();
  if (kept_ && kept_->expires - now > kRefreshBefore) return *kept_;
  auto fetched = link_.credentials();
  if (fetched) {
    auto parsed = parse(*std::move(fetched));
    if (!parsed) return tl::unexpected(parsed.error().with_context("credentials"));
    kept_ = *std::move(parsed);
    return *kept_;
  }
  if (kept_ && kept_->expires > now) return *kept_;
  return tl::unexpected(fetched.error().with_context("no credentials"));
}

void CredentialsCache::forget() {
  const std::lock_guard lock(mutex_);
  kept_.reset();
}

CredentialsServer::CredentialsServer(CredentialsCache& cache, std::string path)
    : cache_(cache), path_(std::move(path)), token_(crypto::random_token(40)) {}

CredentialsServer::~CredentialsServer() {
  if (server_) server_->stop(Millis{0});
}

Result<std::unique_ptr<CredentialsServer>> CredentialsServer::start(const std::string& uri,
                                                                    CredentialsCache& cache) {
  auto text = uri;
  const auto any_port = text.find(":0/");  // no port of a URL: the engine's word for "choose one"
  if (any_port != std::string::npos) text.erase(any_port, 2);
  MUSTER_TRY(const auto url, net::parse_url(text));
  std::unique_ptr<CredentialsServer> out(new CredentialsServer(cache, url.path.empty() ? "/" : url.path));
  net::ServerOptions options;
  options.address = url.host;
  options.port = any_port == std::string::npos ? url.port : std::uint16_t{0};
  options.handler_threads = 2;
  options.connections_max = 64;
  MUSTER_TRY(out->server_, net::Server::start(options, *out));
  out->uri_ = "http://" + url.host + ":" + std::to_string(out->server_->port()) + out->path_;
  return out;
}

std::variant<net::Route, net::Response> CredentialsServer::route(const net::RequestHead& head) {
  if (head.method != "GET" || head.path != path_) return refusal(404, "GET " + path_ + " is all there is");
  if (!crypto::constant_time_equal(head.headers.get("Authorization"), token_)) {
    return refusal(401, "the Authorization header must be AWS_CONTAINER_AUTHORIZATION_TOKEN");
  }
  net::Route route;
  route.body_max = 0;
  route.handle = [this](net::Request&) {
    auto credentials = cache_.get();
    if (!credentials) return refusal(503, credentials.error().message);
    return answer(200, std::move(credentials->json));
  };
  return route;
}

}  // namespace muster::runner
