// The Query protocol (form body, Action, XML answers) and the two services that speak it here: STS
// GetCallerIdentity, and the IAM calls with which SDKs probe a role: GetRole, SimulatePrincipalPolicy.
//
// Any well-formed role exists and may do everything: policies come with a later version. Pure functions.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "api/api.h"
#include "net/http.h"

namespace muster::api::query {

// A form body or query string, decoded; '+' is a space.
std::map<std::string, std::string> parse_form(std::string_view text);

net::Response run_sts(std::string_view form, const Caller& caller);
net::Response run_iam(std::string_view form, const Caller& caller);
net::Response error_response(const ApiError& error, std::string_view request_id);

}  // namespace muster::api::query
