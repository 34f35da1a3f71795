#include "api/router/router.h"

#include "api/protocol/json.h"
#include "api/query/query.h"

namespace muster::api {
namespace {

constexpr std::string_view kSageMakerTarget = "SageMaker.";
constexpr std::string_view kLogsTarget = "Logs_20140328.";
constexpr std::string_view kRunnerPath = "/api/v1/runner/";

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// How a refused request wants its answer: an error before the service is known looks at the path and target.
net::Response refusal(const net::RequestHead& head, std::string_view service, const ApiError& error,
                      std::string_view request_id) {
  if (service == "s3") {
    const auto spelling = spell(error.error.code);
    return s3::error_response(head, request_id, error.status != 0 ? error.status : spelling.status,
                              error.code.empty() ? spelling.code : std::string_view(error.code),
                              error.error.message);
  }
  if (service == "sts" || service == "iam") return query::error_response(error, request_id);
  return json_error(error, request_id);
}

// The service of a request that could not be authenticated, as far as its head tells.
std::string_view guess_service(const net::RequestHead& head) {
  const auto authorization = head.headers.get("Authorization");
  for (const std::string_view service : {"s3", "sts", "iam", "sagemaker", "logs", "muster"}) {
    const std::string name(service);
    if (authorization.find("/" + name + "/aws4_request") != std::string_view::npos) return service;
    if (head.query.find("%2F" + name + "%2Faws4_request") != std::string::npos) return service;  // presigned
  }
  if (head.headers.has("X-Amz-Target") || begins_with(head.path, "/api/v1/")) return "sagemaker";
  return "s3";
}

// By header or query. A bucket may have the name of one of our paths, so the signature is asked first.
bool is_signed(const net::RequestHead& head) {
  if (begins_with(head.headers.get("Authorization"), "Bearer ")) return false;
  const auto claim = wire::sigv4::parse(view_of(head));
  return !claim || claim->has_value();
}

// A route that takes the body whole and refuses a broken one in the protocol of `service`.
net::Route whole_body(std::string service, std::string request_id,
                      std::function<net::Response(net::Request&)> handle) {
  net::Route route;
  route.handle = std::move(handle);
  route.refuse = [service = std::move(service), request_id = std::move(request_id)](
                     int status, std::string_view message) {
    const auto code = status == 413 ? "RequestEntityTooLarge" : "SerializationException";
    return refusal({}, service, refuse(code, std::string(message), status).value(), request_id);
  };
  return route;
}

}  // namespace

std::variant<net::Route, net::Response> Router::route(const net::RequestHead& head) {
  if (begins_with(head.path, kRunnerPath) && !is_signed(head)) return services_.runner.route(head);
  const bool reads = head.method == "GET" || head.method == "HEAD";
  if (head.path == "/healthz" && reads && !is_signed(head)) {
    return whole_body("", "", [](net::Request&) {
      net::Response response;
      response.headers.set("Content-Type", "text/plain");
      response.body = "ok\n";
      return response;
    });
  }
  auto signer = authenticator_.identify(head);
  if (!signer) {
    auto error = signer.error();
    const auto service = guess_service(head);
    if (service == "s3" && error.code == "MissingAuthenticationToken") error.code = "AccessDenied";
    return refusal(head, service, error, new_request_id());
  }
  if (signer->claim.scope.service == "s3") return route_s3(head, *std::move(signer));
  const auto& service = signer->claim.scope.service;
  const auto& request_id = signer->caller.request_id;
  return whole_body(service, request_id, [this, signer = *signer](net::Request& request) {
    const auto verified =
        authenticator_.verify(signer, request.head, wire::sigv4::payload_hash_of(request.body));
    if (!verified) {
      return refusal(request.head, signer.claim.scope.service, verified.error(), signer.caller.request_id);
    }
    return answer(request.head, signer, request.body);
  });
}

std::variant<net::Route, net::Response> Router::route_s3(const net::RequestHead& head, Signed signer) {
  const auto& declared = signer.claim.payload_hash;
  const auto verified =
      authenticator_.verify(signer, head, declared.empty() ? wire::sigv4::payload_hash_of("") : declared);
  if (!verified) return refusal(head, "s3", verified.error(), signer.caller.request_id);
  return services_.s3.route(head, signer.caller, s3::payload_of(signer.claim, signer.secret_key));
}

net::Response Router::answer(const net::RequestHead& head, const Signed& signer, std::string_view body) {
  const auto& service = signer.claim.scope.service;
  const auto target = head.headers.get("X-Amz-Target");
  if (service == "sagemaker")
    return run_json(services_.sagemaker, kSageMakerTarget, target, body, signer.caller);
  if (service == "logs") return run_json(services_.logs, kLogsTarget, target, body, signer.caller);
  if (service == "sts") return query::run_sts(body.empty() ? head.query : body, signer.caller);
  if (service == "iam") return query::run_iam(body.empty() ? head.query : body, signer.caller);
  if (service == "muster") {
    if (!signer.claim.session_token.empty()) {
      return json_error(refuse("AccessDeniedException",
                               "the credentials of a job are not good for managing the service", 403)
                            .value(),
                        signer.caller.request_id);
    }
    return services_.manage.run(head, body, signer.caller);
  }
  return json_error(refuse("UnknownOperationException", "service \"" + service.substr(0, 64) +
                                                            "\" is not one of sagemaker, logs, s3, sts, iam")
                        .value(),
                    signer.caller.request_id);
}

}  // namespace muster::api
