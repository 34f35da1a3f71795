// What the request handlers of all services share: who calls, and how operations and their errors look.
//
// One handler file a service (sagemaker, logs, s3, sts, iam, runner, nodes). A handler is a plain blocking
// function: decoded request in, answer or Error out. How an Error is spelled on the wire is the protocol's
// (JSON 1.1, Query, REST-XML), in one place each. Handlers are called by several threads at once.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"

namespace muster::api {

// The authenticated caller of a request.
struct Caller {
  std::string account;  // 000000000000
  std::string access_key;
  std::string region;      // the service's own, whatever the scope names: an ARN is the same to every caller
  std::string arn;         // arn:aws:iam::...:user/... or assumed role of a job
  std::string request_id;  // answered as x-amzn-RequestId
  Time now;                // when the request was received
};

// An Error with a code of the service's own: "ValidationException", "ResourceInUse", ... Without one the
// protocol picks it from ErrorCode.
struct ApiError {
  Error error;
  std::string code;  // empty: picked from error.code by the protocol
  int status = 0;    // 0: likewise
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

[[nodiscard]] inline tl::unexpected<ApiError> refuse(std::string code, std::string message,
                                                     int status = 400) {
  return tl::unexpected<ApiError>(
      ApiError{Error{ErrorCode::invalid_argument, std::move(message)}, std::move(code), status});
}
// For Errors of the layers below; `code` empty: picked from ErrorCode by the protocol.
[[nodiscard]] inline tl::unexpected<ApiError> refuse(Error error, std::string code = "", int status = 0) {
  return tl::unexpected<ApiError>(ApiError{std::move(error), std::move(code), status});
}

// An operation of a JSON 1.1 service: `X-Amz-Target: <prefix>.<Operation>`.
using JsonOperation =
    std::function<ApiResult<json::Object>(const json::Object& request, const Caller& caller)>;

// Operation name -> handler. The services hand their table to the router.
using JsonOperations = std::map<std::string, JsonOperation, std::less<>>;

}  // namespace muster::api

// MUSTER_TRY_API(auto x, expr): declares x from a Result or answers its error as an ApiError.
#define MUSTER_TRY_API_IMPL_(name, declaration, expression)         \
  auto name = (expression);                                         \
  if (!name) return ::muster::api::refuse(std::move(name).error()); \
  declaration = *std::move(name)
#define MUSTER_TRY_API(declaration, ...) \
  MUSTER_TRY_API_IMPL_(MUSTER_TRY_CONCAT_(muster_try_, __LINE__), declaration, (__VA_ARGS__))
