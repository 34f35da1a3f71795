#include "cli/client.h"

#include <map>

#include "base/text.h"

namespace muster::cli {
namespace {

constexpr Millis kAnswerMax{2'000};

// The kinds of refusal that a caller of the command line may want to tell apart (exit codes).
ErrorCode code_of(std::string_view type, int status) {
  static const std::map<std::string_view, ErrorCode> known = {
      {"ResourceInUse", ErrorCode::already_exists},
      {"ResourceLimitExceeded", ErrorCode::resource_exhausted},
      {"ResourceNotFound", ErrorCode::not_found},
      {"ResourceNotFoundException", ErrorCode::not_found},
      {"InvalidSignatureException", ErrorCode::unauthenticated},
      {"InvalidClientTokenId", ErrorCode::unauthenticated},
  };
  const auto it = known.find(type);
  if (it != known.end()) return it->second;
  return status >= 500 || status == 429 ? ErrorCode::unavailable : ErrorCode::failed_precondition;
}

}  // namespace

Client::Client(Endpoint endpoint, net::Url url)
    : endpoint_(std::move(endpoint)),
      url_(std::move(url)),
      http_(net::Client::create(url_.host, url_.port)) {}

Result<Client> Client::create(Endpoint endpoint) {
  MUSTER_TRY(auto url, net::parse_url(endpoint.url));
  return Client(std::move(endpoint), std::move(url));
}

Result<net::ClientResponse> Client::send(std::string_view service, std::string method, std::string path,
                                         net::Headers headers, std::string body,
                                         std::optional<Millis> timeout) {
  headers.set("Host", net::host_in_url(url_.host) + ":" + std::to_string(url_.port));
  const wire::sigv4::RequestView view{method, path, "", headers.all()};
  for (const auto& [name, value] :
       wire::sigv4::sign(view, endpoint_.credentials, endpoint_.region, service, SystemClock().now(),
                         wire::sigv4::payload_hash_of(body))) {
    headers.set(name, value);
  }
  net::ClientRequest request;
  request.method = std::move(method);
  request.target = std::move(path);
  request.headers = std::move(headers);
  request.body = std::move(body);
  if (timeout) request.timeout = *timeout;
  auto response = http_->send(request);
  if (!response) {
    return fail(ErrorCode::unavailable, "no answer from " + endpoint_.url + " (" + response.error().message +
                                            "); start the service with: " + endpoint_.command +
                                            " up --detach");
  }
  return response;
}

Result<json::Object> Client::read(const Result<net::ClientResponse>& response) const {
  if (!response) return tl::unexpected(response.error());
  auto body = json::parse_object(response->body.empty() ? "{}" : response->body);
  if (response->status < 300 && body) return body;
  if (!body) {
    // 503 also while musterd starts.
    return fail(response->status >= 500 ? ErrorCode::unavailable : ErrorCode::internal,
                endpoint_.url + " answered " + std::to_string(response->status) + ": " +
                    std::string(trim(std::string_view(response->body).substr(0, 200))));
  }
  const auto type = json::opt_string(*body, "__type").value_or("");
  return fail(code_of(type, response->status), json::opt_string(*body, "message").value_or(type));
}

Result<json::Object> Client::call(std::string_view service, std::string_view target,
                                  const json::Object& request) {
  net::Headers headers;
  headers.set("Content-Type", "application/x-amz-json-1.1");
  headers.set("X-Amz-Target", target);
  return read(send(service, "POST", "/", std::move(headers), json::dump(request)));
}

Result<json::Object> Client::sagemaker(std::string_view operation, const json::Object& request) {
  return call("sagemaker", "SageMaker." + std::string(operation), request);
}

Result<json::Object> Client::logs(std::string_view operation, const json::Object& request) {
  return call("logs", "Logs_20140328." + std::string(operation), request);
}

Result<json::Object> Client::get(std::string_view path) {
  return read(send("muster", "GET", std::string(path), {}, ""));
}

Result<json::Object> Client::post(std::string_view path, const json::Object& body) {
  net::Headers headers;
  headers.set("Content-Type", "application/json");
  return read(send("muster", "POST", std::string(path), std::move(headers), json::dump(body)));
}

Result<std::string> Client::account() {
  MUSTER_TRY(const auto facts, get("/api/v1/service"));
  return json::get_string(facts, "account");
}

bool Client::answers() {
  return read(send("muster", "GET", "/api/v1/service", {}, "", kAnswerMax)).has_value();
}

}  // namespace muster::cli
