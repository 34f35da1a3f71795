// How the object store says no. Any thread.
#pragma once

#include <string>

#include "ports/object_store.h"

namespace muster::objectstore {

// The fault with the error code that belongs to it. The message is for the client: what was wrong.
tl::unexpected<ports::ObjectError> refuse(ports::ObjectFault fault, std::string message);

}  // namespace muster::objectstore
