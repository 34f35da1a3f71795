// Shared by the operations of this folder; not for others. Functions without state: any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/logs/logs.h"

namespace muster::api::logs::detail {

using json::Object;

std::string group_arn(const Caller& caller, std::string_view group);

// The group that logGroupName or logGroupIdentifier (name or ARN) names; exactly one of them is needed.
ApiResult<std::string> group_of(const Object& request);

// The store's errors in the service's words.
tl::unexpected<ApiError> translate(const Error& error);
tl::unexpected<ApiError> invalid(std::string message);
tl::unexpected<ApiError> bad_token();

// An opaque token made of a kind and text fields, and back; nullopt for what was not made here or is of
// another kind.
std::string make_token(char kind, const std::vector<std::string>& fields);
std::optional<std::vector<std::string>> read_token(char kind, std::string_view token);

ApiResult<Object> describe_log_groups(ports::LogStore& store, const Object& request, const Caller& caller);
ApiResult<Object> describe_log_streams(ports::LogStore& store, const Object& request, const Caller& caller);
ApiResult<Object> get_log_events(ports::LogStore& store, const Object& request, const Caller& caller);
ApiResult<Object> filter_log_events(ports::LogStore& store, const Object& request, const Caller& caller);

}  // namespace muster::api::logs::detail
