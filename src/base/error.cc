#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "base/assert.h"

namespace muster {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::not_found:
      return "not found";
    case ErrorCode::already_exists:
      return "already exists";
    case ErrorCode::failed_precondition:
      return "failed precondition";
    case ErrorCode::resource_exhausted:
      return "resource exhausted";
    case ErrorCode::permission_denied:
      return "permission denied";
    case ErrorCode::unauthenticated:
      return "unauthenticated";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::io:
      return "I/O error";
    case ErrorCode::no_space:
      return "no space left";
    case ErrorCode::corrupt:
      return "corrupt data";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::internal:
      return "internal error";
  }
  return "unknown error";
}

Error Error::with_context(std::string_view outer) const {
  return Error{code, std::string(outer) + ": " + message};
}

tl::unexpected<Error> fail_errno(std::string_view what) { return fail_errno(what, errno); }

tl::unexpected<Error> fail_errno(std::string_view what, int error_number) {
  auto code = ErrorCode::io;
  switch (error_number) {
    case ENOENT:
      code = ErrorCode::not_found;
      break;
    case EEXIST:
      code = ErrorCode::already_exists;
      break;
    case EACCES:
    case EPERM:
      code = ErrorCode::permission_denied;
      break;
    case ENOSPC:
    case EDQUOT:
      code = ErrorCode::no_space;
      break;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN:
      code = ErrorCode::unavailable;
      break;
    case ETIMEDOUT:
      code = ErrorCode::timeout;
      break;
    default:
      break;
  }
  return fail(code, std::string(what) + ": " + std::generic_category().message(error_number));
}

namespace base {

void assertion_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: this must hold and does not: %s\n", file, line, expression);
  std::abort();
}

}  // namespace base
}  // namespace muster
