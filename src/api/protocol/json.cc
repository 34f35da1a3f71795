#include "api/protocol/json.h"

#include "base/text.h"

namespace muster::api {

ErrorSpelling spell(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::failed_precondition:
      return {"ValidationException", 400};
    case ErrorCode::not_found:
      return {"ResourceNotFoundException", 400};
    case ErrorCode::already_exists:
      return {"ResourceInUse", 400};
    case ErrorCode::resource_exhausted:
      return {"ThrottlingException", 429};
    case ErrorCode::permission_denied:
      return {"AccessDeniedException", 403};
    case ErrorCode::unauthenticated:
      return {"InvalidSignatureException", 403};
    case ErrorCode::unsupported:
      return {"UnknownOperationException", 400};
    case ErrorCode::unavailable:
    case ErrorCode::timeout:
    case ErrorCode::cancelled:
      return {"ServiceUnavailable", 503};
    case ErrorCode::io:
    case ErrorCode::no_space:
    case ErrorCode::corrupt:
    case ErrorCode::internal:
      return {"InternalFailure", 500};
  }
  return {"InternalFailure", 500};
}

net::Response json_response(const json::Object& body, std::string_view request_id) {
  net::Response response;
  response.headers.set("Content-Type", "application/x-amz-json-1.1");
  response.headers.set("x-amzn-RequestId", request_id);
  response.body = json::dump(body);
  return response;
}

net::Response json_error(const ApiError& error, std::string_view request_id) {
  const auto spelling = spell(error.error.code);
  json::Object body;
  body["__type"] = error.code.empty() ? spelling.code : std::string_view(error.code);
  body["message"] = error.error.message;
  auto response = json_response(body, request_id);
  response.status = error.status != 0 ? error.status : spelling.status;
  return response;
}

net::Response run_json(const JsonOperations& operations, std::string_view prefix, std::string_view target,
                       std::string_view body, const Caller& caller) {
  const auto name =
      target.substr(0, prefix.size()) == prefix ? target.substr(prefix.size()) : std::string_view();
  const auto operation = operations.find(name);
  if (operation == operations.end()) {
    std::vector<std::string> known;
    for (const auto& entry : operations) known.push_back(entry.first);
    return json_error(
        refuse("UnknownOperationException", "X-Amz-Target is \"" + std::string(target.substr(0, 100)) +
                                                "\"; this service answers " + join(known, ", "))
            .value(),
        caller.request_id);
  }
  const auto request = json::parse_object(body.empty() ? "{}" : body);
  if (!request)
    return json_error(refuse("SerializationException", request.error().message).value(), caller.request_id);
  const auto answer = operation->second(*request, caller);
  return answer ? json_response(*answer, caller.request_id) : json_error(answer.error(), caller.request_id);
}

}  // namespace muster::api
