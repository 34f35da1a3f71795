#include "data/objectstore/detail/refuse.h"

namespace muster::objectstore {

using ports::ObjectError;
using ports::ObjectFault;

tl::unexpected<ObjectError> refuse(ObjectFault fault, std::string message) {
  const auto code = fault == ObjectFault::no_such_bucket || fault == ObjectFault::no_such_key ||
                            fault == ObjectFault::no_such_upload
                        ? ErrorCode::not_found
                    : fault == ObjectFault::bucket_exists ? ErrorCode::already_exists
                    : fault == ObjectFault::bucket_not_empty || fault == ObjectFault::precondition_failed
                        ? ErrorCode::failed_precondition
                        : ErrorCode::invalid_argument;
  return tl::unexpected(ObjectError(fault, Error{code, std::move(message)}));
}

}  // namespace muster::objectstore
