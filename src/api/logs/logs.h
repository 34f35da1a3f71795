// Amazon CloudWatch Logs, what clients read job logs with: DescribeLogGroups, DescribeLogStreams,
// GetLogEvents and FilterLogEvents over the LogStore. Nothing here passes through the control thread.
//
// Tokens. GetLogEvents: f/N and b/N, N a line's number; at the end of a stream the token sent comes back with
// no events, so that both kinds of client stop (docs/adr/0032 and the SDKs' loops). Lists and
// FilterLogEvents: an opaque token that names the last item, absent when nothing remains.
//
// Handlers block on the disk; called from many threads.
#pragma once

#include <memory>

#include "api/api.h"
#include "api/model/model.h"
#include "ports/log_store.h"

namespace muster::api::logs {

// The operations by name, for the JSON 1.1 router ("Logs_20140328.<Operation>"). `store` outlives them.
JsonOperations operations(ports::LogStore& store, std::shared_ptr<const Model> model);

}  // namespace muster::api::logs
