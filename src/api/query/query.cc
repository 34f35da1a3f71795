#include "api/query/query.h"

#include <algorithm>
#include <pugixml.hpp>
#include <sstream>
#include <vector>

#include "base/crypto.h"
#include "base/text.h"

namespace muster::api::query {
namespace {

using Form = std::map<std::string, std::string>;

constexpr const char* kStsNamespace = "https://sts.amazonaws.com/doc/2011-06-15/";
constexpr const char* kIamNamespace = "https://iam.amazonaws.com/doc/2010-05-08/";

// SimulatePrincipalPolicy answers each action on each resource: what is bounded is the product, and the names
// as IAM bounds them.
constexpr std::size_t kSimulatedMax = 10'000;
constexpr std::size_t kActionNameMax = 128;
constexpr std::size_t kResourceNameMax = 2'048;

void add_text(pugi::xml_node parent, const char* name, std::string_view text) {
  parent.append_child(name).text().set(std::string(text).c_str());
}

net::Response xml_response(const pugi::xml_document& document, int status, std::string_view request_id) {
  std::ostringstream text;
  document.save(text, "", pugi::format_raw | pugi::format_no_declaration);
  net::Response response;
  response.status = status;
  response.headers.set("Content-Type", "text/xml");
  response.headers.set("x-amzn-RequestId", request_id);
  response.body = text.str();
  return response;
}

std::string value(const Form& form, const std::string& name) {
  const auto it = form.find(name);
  return it == form.end() ? std::string() : it->second;
}

// The values of name.member.1, name.member.2, ... in order.
std::vector<std::string> members(const Form& form, const std::string& name) {
  std::vector<std::string> out;
  for (int i = 1;; ++i) {
    const auto it = form.find(name + ".member." + std::to_string(i));
    if (it == form.end()) return out;
    out.push_back(it->second);
  }
}

using Operation = ApiResult<void> (*)(const Form&, const Caller&, pugi::xml_node result);

ApiResult<void> get_caller_identity(const Form&, const Caller& caller, pugi::xml_node result) {
  add_text(result, "Arn", caller.arn);
  add_text(result, "UserId", caller.access_key);
  add_text(result, "Account", caller.account);
  return {};
}

constexpr std::string_view kTrust =
    R"({"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":["sagemaker.amazonaws.com",)"
    R"("batch.amazonaws.com","ecs-tasks.amazonaws.com"]},"Action":"sts:AssumeRole"}]})";

ApiResult<void> get_role(const Form& form, const Caller& caller, pugi::xml_node result) {
  const auto name = value(form, "RoleName");
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_+=,.@-").find(c) != std::string_view::npos;
  };
  if (name.empty() || name.size() > 64 || !std::all_of(name.begin(), name.end(), allowed)) {
    return refuse("ValidationError", "RoleName is \"" + to_utf8_lossy(name.substr(0, 80)) +
                                         "\", it must be 1 to 64 of [A-Za-z0-9_+=,.@-]");
  }
  auto role = result.append_child("Role");
  add_text(role, "Path", "/");
  add_text(role, "RoleName", name);
  add_text(role, "RoleId", "AROA" + crypto::hex(crypto::sha256(name)).substr(0, 17));
  add_text(role, "Arn", "arn:aws:iam::" + caller.account + ":role/" + name);
  add_text(role, "CreateDate", "2024-01-01T00:00:00Z");
  add_text(role, "AssumeRolePolicyDocument", percent_encode(kTrust));
  add_text(role, "MaxSessionDuration", "43200");
  return {};
}

ApiResult<void> check_lengths(const std::string& list, const std::vector<std::string>& names,
                              std::size_t bytes_max) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].size() <= bytes_max) continue;
    return refuse("ValidationError", list + ".member." + std::to_string(i + 1) + " has " +
                                         std::to_string(names[i].size()) + " characters, at most " +
                                         std::to_string(bytes_max) + " are allowed");
  }
  return {};
}

ApiResult<void> simulate(const Form& form, const Caller&, pugi::xml_node result) {
  const auto actions = members(form, "ActionNames");
  if (value(form, "PolicySourceArn").empty())
    return refuse("ValidationError", "PolicySourceArn is required and missing");
  if (actions.empty()) return refuse("ValidationError", "ActionNames is required and missing");
  auto resources = members(form, "ResourceArns");
  if (resources.empty()) resources.emplace_back("*");
  if (actions.size() > kSimulatedMax / resources.size()) {
    return refuse("ValidationError", "ActionNames has " + std::to_string(actions.size()) +
                                         " members and ResourceArns " + std::to_string(resources.size()) +
                                         "; at most " + std::to_string(kSimulatedMax) +
                                         " pairs are simulated at once: send fewer in each request");
  }
  MUSTER_CHECK(check_lengths("ActionNames", actions, kActionNameMax));
  MUSTER_CHECK(check_lengths("ResourceArns", resources, kResourceNameMax));
  add_text(result, "IsTruncated", "false");
  auto list = result.append_child("EvaluationResults");
  for (const auto& action : actions) {
    for (const auto& resource : resources) {
      auto member = list.append_child("member");
      add_text(member, "EvalActionName", action);
      add_text(member, "EvalResourceName", resource);
      add_text(member, "EvalDecision", "allowed");
      member.append_child("MatchedStatements");
      member.append_child("MissingContextValues");
    }
  }
  return {};
}

net::Response run(const std::map<std::string, Operation>& operations, const char* xml_namespace,
                  std::string_view body, const Caller& caller) {
  const auto form = parse_form(body);
  const auto action = value(form, "Action");
  const auto operation = operations.find(action);
  if (operation == operations.end()) {
    std::vector<std::string> known;
    for (const auto& entry : operations) known.push_back(entry.first);
    return error_response(refuse("InvalidAction", "Action is \"" + to_utf8_lossy(action.substr(0, 80)) +
                                                      "\"; this service answers " + join(known, ", "))
                              .value(),
                          caller.request_id);
  }
  pugi::xml_document document;
  auto root = document.append_child((action + "Response").c_str());
  root.append_attribute("xmlns") = xml_namespace;
  const auto done = operation->second(form, caller, root.append_child((action + "Result").c_str()));
  if (!done) return error_response(done.error(), caller.request_id);
  add_text(root.append_child("ResponseMetadata"), "RequestId", caller.request_id);
  return xml_response(document, 200, caller.request_id);
}

}  // namespace

std::map<std::string, std::string> parse_form(std::string_view text) {
  Form form;
  for (const auto pair : split(text, '&')) {
    if (pair.empty()) continue;
    const auto equals = pair.find('=');
    const auto decode = [](std::string_view part) {
      std::string spaced(part);
      std::replace(spaced.begin(), spaced.end(), '+', ' ');
      return percent_decode(spaced).value_or(spaced);
    };
    form[decode(pair.substr(0, equals))] =
        equals == std::string_view::npos ? "" : decode(pair.substr(equals + 1));
  }
  return form;
}

net::Response run_sts(std::string_view form, const Caller& caller) {
  static const std::map<std::string, Operation> operations = {{"GetCallerIdentity", get_caller_identity}};
  return run(operations, kStsNamespace, form, caller);
}

net::Response run_iam(std::string_view form, const Caller& caller) {
  static const std::map<std::string, Operation> operations = {{"GetRole", get_role},
                                                              {"SimulatePrincipalPolicy", simulate}};
  return run(operations, kIamNamespace, form, caller);
}

net::Response error_response(const ApiError& error, std::string_view request_id) {
  const bool sender = error.error.code == ErrorCode::invalid_argument || error.status / 100 == 4;
  pugi::xml_document document;
  auto root = document.append_child("ErrorResponse");
  auto body = root.append_child("Error");
  add_text(body, "Type", sender ? "Sender" : "Receiver");
  add_text(body, "Code", error.code.empty() ? "InternalFailure" : error.code);
  add_text(body, "Message", error.error.message);
  add_text(root, "RequestId", request_id);
  return xml_response(document, error.status != 0 ? error.status : (sender ? 400 : 500), request_id);
}

}  // namespace muster::api::query
