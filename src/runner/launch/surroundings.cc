#include "runner/launch/surroundings.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "runner/launch/paths.h"

namespace muster::runner {
namespace {

constexpr const char* kGroup = "homogeneousCluster";

json::Object resource_config(const domain::NodeLaunch& launch) {
  std::vector<std::string> names;
  for (const auto& host : launch.hosts) names.push_back(host.name);
  std::sort(names.begin(), names.end());  // as the service sorts them: algo-10 before algo-2
  const auto hosts = json::from_string_list(names);
  const auto& type = launch.workload.instance_type;
  json::Object out{{"current_host", domain::host_name(launch.id.rank)}, {"hosts", hosts}};
  if (launch.workload.kind == domain::JobKind::processing) return out;
  out["current_instance_type"] = type;
  out["current_group_name"] = kGroup;
  out["instance_groups"] =
      json::Array{json::Object{{"instance_group_name", kGroup}, {"instance_type", type}, {"hosts", hosts}}};
  out["network_interface_name"] = launch.interface;
  return out;
}

json::Object input_data_config(const domain::Workload& work) {
  json::Object out;
  for (const auto& channel : work.channels) {
    json::Object entry{{"TrainingInputMode", "File"},
                       {"S3DistributionType", channel.distribution == domain::Distribution::fully_replicated
                                                  ? "FullyReplicated"
                                                  : "ShardedByS3Key"},
                       {"RecordWrapperType", channel.record_wrapper}};
    if (!channel.content_type.empty()) entry["ContentType"] = channel.content_type;
    out[channel.name] = std::move(entry);
  }
  return out;
}

bool built_in(const domain::Workload& work) { return work.program == "train" || work.program == "data"; }

}  // namespace

std::map<std::string, std::string> config_files(const domain::NodeLaunch& launch) {
  const auto& work = launch.workload;
  std::map<std::string, std::string> out;
  if (work.kind == domain::JobKind::training) {
    const std::string folder = "/opt/ml/input/config/";
    out[folder + "hyperparameters.json"] = json::dump(json::from_string_map(work.hyperparameters));
    out[folder + "inputdataconfig.json"] = json::dump(input_data_config(work));
    out[folder + "resourceconfig.json"] = json::dump(resource_config(launch));
    if (!work.checkpoint.s3_uri.empty()) {
      out[folder + "checkpointconfig.json"] = json::dump(
          json::Object{{"S3Uri", work.checkpoint.s3_uri}, {"LocalPath", work.checkpoint.local_path}});
    }
  } else {
    out["/opt/ml/config/resourceconfig.json"] = json::dump(resource_config(launch));
  }
  for (const auto& [path, content] : work.files) out[path] = content;
  return out;
}

std::vector<std::string> folders(const domain::NodeLaunch& launch) {
  const auto& work = launch.workload;
  std::set<std::string> out{"/opt/ml", "/opt/ml/output"};
  if (work.kind == domain::JobKind::training) {
    out.insert({"/opt/ml/code", "/opt/ml/model", "/opt/ml/output/data", "/opt/ml/input", "/opt/ml/input/data",
                "/opt/ml/input/config", work.checkpoint.local_path});
  } else {
    out.insert({"/opt/ml/config", "/opt/ml/processing"});
  }
  for (const auto& channel : work.channels) out.insert(channel.local_path);
  for (const auto& output : work.outputs) out.insert(output.local_path);
  return {out.begin(), out.end()};
}

int master_port(const domain::LaunchId& id) { return 16'384 + static_cast<int>(id.attempt.value % 12'000); }

std::map<std::string, std::string> environment(const domain::NodeLaunch& launch, const NodeFacts& node) {
  const auto& work = launch.workload;
  const auto rank = std::to_string(launch.id.rank);
  const auto world = std::to_string(launch.world);
  std::string path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  if (!node.bin_dir.empty()) path = node.bin_dir + ":" + path;
  std::map<std::string, std::string> out{
      {"PATH", path},
      {"HOME", node.home},
      {"LANG", "C.UTF-8"},
      {"PYTHONUNBUFFERED", "1"},  // log lines leave as they are printed
      {"MASTER_ADDR",
       node.names_resolve || launch.hosts.empty() ? domain::host_name(0) : launch.hosts[0].address},
      {"MASTER_PORT", std::to_string(master_port(launch.id))},
      {"WORLD_SIZE", world},
      {"RANK", rank},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "1"},
      {"GROUP_RANK", rank},
      {"NODE_RANK", rank},
      {"GLOO_SOCKET_IFNAME", launch.interface},
      {"NCCL_SOCKET_IFNAME", launch.interface},
  };
  if (!node.user.empty()) {
    out["USER"] = node.user;
    out["LOGNAME"] = node.user;
  }
  for (const auto& [name, value] : work.environment) out[name] = value;
  // Who the job is: not for the request to change.
  if (work.kind == domain::JobKind::training) {
    out["TRAINING_JOB_NAME"] = work.job_name;
    out["TRAINING_JOB_ARN"] = work.job_arn;
  } else {
    out["PROCESSING_JOB_NAME"] = work.job_name;
    out["PROCESSING_JOB_ARN"] = work.job_arn;
  }
  out["AWS_REGION"] = work.region;
  out["AWS_DEFAULT_REGION"] = work.region;
  out["AWS_ENDPOINT_URL"] = launch.endpoint_url;
  if (!node.credentials_uri.empty()) {
    out["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = node.credentials_uri;
    out["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = node.credentials_token;
  }
  if (node.opt_ml != "/opt/ml") out["SAGEMAKER_BASE_DIR"] = node.opt_ml;
  return out;
}

std::vector<std::string> command_line(const domain::NodeLaunch& launch, const NodeFacts& node) {
  const auto& work = launch.workload;
  std::vector<std::string> out = work.entrypoint;
  if (out.empty() && built_in(work)) out.push_back(node.bin_dir + "/muster-" + work.program);
  out.insert(out.end(), work.arguments.begin(), work.arguments.end());
  // An image without an entrypoint of the request is started with the word "train".
  if (work.entrypoint.empty() && work.arguments.empty() && work.kind == domain::JobKind::training) {
    out.emplace_back("train");
  }
  return out;
}

}  // namespace muster::runner
