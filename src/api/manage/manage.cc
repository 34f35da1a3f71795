#include "api/manage/manage.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "api/protocol/json.h"

namespace muster::api {
namespace {

// However short the limit: a client that is still there sends a part more often, and would lose its upload.
constexpr std::chrono::seconds kUploadIdleMin{3'600};

// [{"kind", "name"}] as set; nullopt: it is something else.
std::optional<std::set<control::JobName>> job_names(const json::Value& value) {
  if (!value.is_array()) return std::nullopt;
  std::set<control::JobName> out;
  for (const auto& entry : value.get_array()) {
    if (!entry.is_object()) return std::nullopt;
    const auto kind = json::opt_string(entry.get_object(), "kind");
    auto name = json::opt_string(entry.get_object(), "name");
    if (!name || (kind != "training" && kind != "processing")) return std::nullopt;
    out.insert(
        {kind == "training" ? domain::JobKind::training : domain::JobKind::processing, *std::move(name)});
  }
  return out;
}

}  // namespace

net::Response ManageApi::run(const net::RequestHead& head, std::string_view body, const Caller& caller) {
  const auto answer = [&]() -> ApiResult<json::Object> {
    if (head.method == "GET" && head.path == "/api/v1/service") return service_facts(caller);
    if (head.method == "GET" && head.path == "/api/v1/nodes") return nodes();
    if (head.method == "POST" && head.path == "/api/v1/prune") return prune(body, caller);
    return refuse("NotFound",
                  head.method + " " + head.path.substr(0, 100) +
                      " is not one of GET /api/v1/service, GET /api/v1/nodes, POST /api/v1/prune",
                  404);
  }();
  return answer ? json_response(*answer, caller.request_id) : json_error(answer.error(), caller.request_id);
}

ApiResult<json::Object> ManageApi::service_facts(const Caller& caller) {
  MUSTER_TRY_API(const auto inventory, facts_.inventory());
  json::Object out;
  out["version"] = facts_.version;
  out["account"] = caller.account;
  out["data_directory"] = facts_.data_directory;
  out["isolation"] = json::from_string_list(inventory.isolation);
  out["not_isolated"] = json::from_string_list(inventory.not_isolated);
  out["in_words"] = json::from_string_list(inventory.in_words);
  return out;
}

ApiResult<json::Object> ManageApi::nodes() {
  MUSTER_TRY_API(const auto nodes, service_.nodes());
  json::Array list;
  for (const auto& [node, job, rank] : nodes) {
    json::Object entry;
    entry["name"] = node.name;
    entry["cpus"] = node.cpus;
    entry["memory_bytes"] = node.memory_bytes;
    entry["address"] = node.address;
    entry["healthy"] = node.healthy;
    entry["message"] = node.message;
    if (!job.empty()) {
      entry["job"] = job;
      entry["rank"] = rank;
    }
    list.emplace_back(std::move(entry));
  }
  json::Object out;
  out["nodes"] = std::move(list);
  return out;
}

ApiResult<json::Object> ManageApi::prune(std::string_view body, const Caller& caller) {
  MUSTER_TRY_API(const auto request, json::parse_object(body));
  const auto seconds = json::opt_int(request, "older_than_seconds");
  constexpr std::int64_t kMost = 10LL * 365 * 86'400;
  if (!seconds || *seconds < 0 || *seconds > kMost) {
    return refuse("ValidationException",
                  "older_than_seconds must be a whole number from 0 to " + std::to_string(kMost));
  }
  control::PruneJobs command{caller.now - std::chrono::seconds(*seconds)};
  if (const auto* jobs = request.if_contains("jobs")) {
    command.only = job_names(*jobs);
    if (!command.only) {
      return refuse("ValidationException",
                    "jobs must be a list of {\"kind\": \"training\" or \"processing\", \"name\": NAME}");
    }
  }
  // First, because it needs no room and makes some.
  const auto idle = std::max(std::chrono::seconds(*seconds), kUploadIdleMin);
  const auto aborted = objects_.abort_idle_uploads(caller.now - idle);
  if (!aborted) return refuse(aborted.error().error);
  MUSTER_TRY_API(const auto reply, service_.call(std::move(command)));
  if (reply.error) return refuse(*reply.error);
  json::Array pruned;
  for (const auto& job : reply.pruned)
    pruned.push_back(json::Object{{"kind", to_string(job.kind)}, {"name", job.name}});
  json::Object out;
  out["pruned"] = std::move(pruned);
  out["left"] = reply.left;
  out["uploads_aborted"] = *aborted;
  return out;
}

}  // namespace muster::api
