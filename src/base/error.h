// Result and Error: how every fallible function of Muster answers.
//
// An Error is a small code, a message for a person, and the context that callers added on the way up. A
// message names what was wrong with the value, the limit and the remedy. The codes are mapped once to HTTP
// statuses and AWS error codes (api) and once to exit codes (cli). Libraries that throw are caught at the
// adapter. Values: copies may go to other threads, one object is for one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace muster {

enum class ErrorCode {
  invalid_argument,  // the caller's input; retrying cannot help
  not_found,
  already_exists,
  failed_precondition,  // right input, wrong state
  resource_exhausted,   // a quota or a bound; retrying later may help
  permission_denied,
  unauthenticated,
  unavailable,  // the other side is away; retry
  timeout,
  io,        // the operating system refused
  no_space,  // the disk is full, or the quota on it used up
  corrupt,   // stored bytes are not what was written
  cancelled,
  unsupported,
  internal,
};

// "invalid argument", "not found", ...
std::string_view to_string(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;

  // The same error with `outer: ` in front of its message.
  Error with_context(std::string_view outer) const;
};

template <typename T>
using Result = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

// `what: strerror(errno)`, with a code that fits errno (ENOENT not_found, ENOSPC no_space, ...).
[[nodiscard]] tl::unexpected<Error> fail_errno(std::string_view what);
[[nodiscard]] tl::unexpected<Error> fail_errno(std::string_view what, int error_number);

}  // namespace muster

// MUSTER_CHECK(expr): returns the error of a Result<void> (or any Result) from the enclosing function.
#define MUSTER_CHECK(expression)                                      \
  do {                                                                \
    auto muster_check_result_ = (expression);                         \
    if (!muster_check_result_) {                                      \
      return tl::unexpected(std::move(muster_check_result_).error()); \
    }                                                                 \
  } while (false)

// MUSTER_TRY(auto x, expr): declares x from a Result or returns its error.
#define MUSTER_TRY_CONCAT_INNER_(a, b) a##b
#define MUSTER_TRY_CONCAT_(a, b) MUSTER_TRY_CONCAT_INNER_(a, b)
#define MUSTER_TRY_IMPL_(name, declaration, expression)      \
  auto name = (expression);                                  \
  if (!name) return tl::unexpected(std::move(name).error()); \
  declaration = *std::move(name)
#define MUSTER_TRY(declaration, ...) \
  MUSTER_TRY_IMPL_(MUSTER_TRY_CONCAT_(muster_try_, __LINE__), declaration, (__VA_ARGS__))
