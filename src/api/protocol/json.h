// JSON 1.1, the protocol of SageMaker and CloudWatch Logs: X-Amz-Target names the operation, bodies are JSON
// objects, an error is {"__type": code, "message": text}. Pure functions.
#pragma once

#include <string_view>

#include "api/api.h"
#include "net/http.h"

namespace muster::api {

// The code and HTTP status of an error where the handler named none.
struct ErrorSpelling {
  std::string_view code;
  int status;
};
ErrorSpelling spell(ErrorCode code);

net::Response json_response(const json::Object& body, std::string_view request_id);
net::Response json_error(const ApiError& error, std::string_view request_id);

// Runs the operation that `target` ("SageMaker.CreateTrainingJob") names after `prefix` ("SageMaker.").
// UnknownOperationException names those that there are.
net::Response run_json(const JsonOperations& operations, std::string_view prefix, std::string_view target,
                       std::string_view body, const Caller& caller);

}  // namespace muster::api
