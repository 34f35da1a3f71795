#include "base/json.h"
#include "engine/local/run_folder.h"

namespace muster::engine::local {

std::string encode(const NodePlan& plan) {
  json::Object user{{"change", plan.user.change},
                    {"uid", plan.user.uid},
                    {"gid", plan.user.gid},
                    {"name", plan.user.name},
                    {"home", plan.user.home}};
  json::Array groups;
  for (const auto group : plan.user.groups) groups.emplace_back(group);
  user["groups"] = std::move(groups);
  return json::dump(json::Object{{"probe", plan.probe},
                                 {"isolate", plan.isolate},
                                 {"data_directory", plan.data_directory},
                                 {"host_name", plan.host_name},
                                 {"user", std::move(user)},
                                 {"cgroups", json::from_string_list(plan.cgroups)},
                                 {"reach", json::from_string_list(plan.reach)},
                                 {"trials", json::from_string_list(plan.trials)}});
}

namespace {

Result<unsigned> to_id(const json::Value& value) {
  const auto* number = value.if_int64();
  if (number == nullptr || *number < 0 || *number > 0xfffffffeLL) {
    return fail(ErrorCode::corrupt, "a user or group id must be a number from 0 to 4294967294");
  }
  return static_cast<unsigned>(*number);
}

Result<JobUser> decode_user(const json::Object& object) {
  JobUser user;
  MUSTER_TRY(user.change, json::get_bool(object, "change"));
  MUSTER_TRY(user.name, json::get_string(object, "name"));
  MUSTER_TRY(user.home, json::get_string(object, "home"));
  MUSTER_TRY(const auto uid, json::get_int(object, "uid"));
  MUSTER_TRY(const auto gid, json::get_int(object, "gid"));
  MUSTER_TRY(user.uid, to_id(uid));
  MUSTER_TRY(user.gid, to_id(gid));
  const auto* groups = json::opt_array(object, "groups");
  if (groups == nullptr) return fail(ErrorCode::corrupt, "groups must be a list of numbers");
  for (const auto& group : *groups) {
    MUSTER_TRY(const auto id, to_id(group));
    user.groups.push_back(id);
  }
  return user;
}

}  // namespace

Result<NodePlan> decode_node_plan(std::string_view text) {
  MUSTER_TRY(const auto object, json::parse_object(text));
  NodePlan plan;
  MUSTER_TRY(plan.probe, json::get_bool(object, "probe"));
  MUSTER_TRY(plan.isolate, json::get_bool(object, "isolate"));
  MUSTER_TRY(plan.data_directory, json::get_string(object, "data_directory"));
  MUSTER_TRY(plan.host_name, json::get_string(object, "host_name"));
  const auto* user = json::opt_object(object, "user");
  if (user == nullptr) return fail(ErrorCode::corrupt, "user must be an object");
  MUSTER_TRY(plan.user, decode_user(*user));
  const auto* cgroups = json::opt_array(object, "cgroups");
  if (cgroups == nullptr) return fail(ErrorCode::corrupt, "cgroups must be a list of paths");
  plan.cgroups = json::string_list(*cgroups);
  if (const auto* reach = json::opt_array(object, "reach")) plan.reach = json::string_list(*reach);
  if (const auto* trials = json::opt_array(object, "trials")) plan.trials = json::string_list(*trials);
  return plan;
}

}  // namespace muster::engine::local
