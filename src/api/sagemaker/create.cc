// What CreateTrainingJob and CreateProcessingJob have in common: members of the same meaning under other
// names.
#include <algorithm>

#include "api/sagemaker/detail.h"
#include "base/text.h"

namespace muster::api::sagemaker::detail {
namespace {

constexpr std::int64_t kMaxRuntimeDefault = 86'400;  // seconds
constexpr std::int64_t kInstancesMost = 10'000;

bool below_opt_ml(std::string_view path) {
  constexpr std::string_view kRoot = "/opt/ml/";
  if (!path.starts_with(kRoot)) return false;
  path.remove_prefix(kRoot.size());
  if (path.ends_with('/')) path.remove_suffix(1);
  const auto parts = split(path, '/');
  return std::none_of(parts.begin(), parts.end(),
                      [](auto part) { return part.empty() || part == "." || part == ".."; });
}

}  // namespace

std::int64_t max_runtime_seconds(const json::Object& request) {
  const auto* condition = json::opt_object(request, "StoppingCondition");
  if (condition == nullptr) return kMaxRuntimeDefault;
  return json::opt_int(*condition, "MaxRuntimeInSeconds").value_or(kMaxRuntimeDefault);
}

control::SubmitJob begin_job(domain::JobKind kind, const std::string& name, const json::Object& request,
                             const Caller& caller) {
  control::SubmitJob command;
  command.kind = kind;
  command.name = name;
  command.max_runtime = std::chrono::seconds(max_runtime_seconds(request));
  auto& workload = command.workload;
  workload.kind = kind;
  workload.job_name = name;
  workload.job_arn = arn(caller, kind, name);
  workload.region = caller.region;
  workload.role_arn = json::opt_string(request, "RoleArn").value_or("");
  workload.max_runtime = command.max_runtime;
  workload.grace = command.grace;
  workload.environment = string_map(request, "Environment");
  return command;
}

void read_nodes(const Context& context, const json::Object& resources, const std::string& path,
                control::SubmitJob& command, Problems& problems) {
  const auto count = json::opt_int(resources, "InstanceCount").value_or(0);
  const auto is = path + ".InstanceCount is " + std::to_string(count);
  problems.add_if(count < 1, is + ", at least 1 is needed");
  problems.add_if(count > kInstancesMost,
                  is + ", at most " + std::to_string(kInstancesMost) + " are allowed");
  command.nodes = static_cast<int>(std::clamp<std::int64_t>(count, 0, kInstancesMost));
  refuse_kms_key(resources, path, "VolumeKmsKeyId", problems);
  auto& type = command.workload.instance_type;
  type = json::opt_string(resources, "InstanceType").value_or("");
  if (type.empty()) {
    problems.add(path + ".InstanceType is required and missing");
  } else {
    check_instance_type(context, path + ".InstanceType", type, problems);
  }
}

void read_program(const Context& context, const json::Object& specification, const std::string& path,
                  const std::string& image_member, domain::Workload& workload, Problems& problems) {
  workload.image = json::opt_string(specification, image_member).value_or("");
  workload.program = check_image(context, path + "." + image_member, workload.image, problems);
  workload.entrypoint = string_list(specification, "ContainerEntrypoint");
  workload.arguments = string_list(specification, "ContainerArguments");
  problems.add_if(workload.program == "host" && workload.entrypoint.empty(),
                  path + ".ContainerEntrypoint is needed with image \"" + workload.image +
                      "\", which runs on the machine's own root file system and has no command of its own");
}

void read_s3_source(const Context& context, const json::Object& s3, const std::string& path,
                    domain::Channel& channel, Problems& problems) {
  channel.s3_uri = json::opt_string(s3, "S3Uri").value_or("");
  check_bucket(context, path + ".S3Uri", channel.s3_uri, problems);
  const auto type = json::opt_string(s3, "S3DataType").value_or("");
  problems.add_if(type != "S3Prefix",
                  path + ".S3DataType " + type + " is not supported by this version; use S3Prefix");
  if (json::opt_string(s3, "S3DataDistributionType").value_or("") == "ShardedByS3Key") {
    channel.distribution = domain::Distribution::sharded_by_s3_key;
  }
}

void refuse_network(const json::Object& network, const std::string& path, Problems& problems) {
  problems.add_if(json::opt_bool(network, "EnableNetworkIsolation").value_or(false),
                  path +
                      "EnableNetworkIsolation cannot be enforced: local nodes share the machine's network; "
                      "use false");
  problems.add_if(json::opt_bool(network, "EnableInterContainerTrafficEncryption").value_or(false),
                  path +
                      "EnableInterContainerTrafficEncryption cannot be enforced: what nodes send each other "
                      "is not encrypted by this version; use false");
  problems.add_if(network.contains("VpcConfig"),
                  path +
                      "VpcConfig cannot be enforced: there are no subnets and security groups here; leave "
                      "it out");
}

void refuse_kms_key(const json::Object& object, const std::string& path, std::string_view name,
                    Problems& problems) {
  problems.add_if(!json::opt_string(object, name).value_or("").empty(),
                  path + "." + std::string(name) +
                      " cannot be used: this version encrypts nothing at rest; "
                      "leave it out");
}

void check_file_mode(const std::string& member, const json::Object& object, std::string_view name,
                     Problems& problems) {
  const auto mode = json::opt_string(object, name).value_or("File");
  problems.add_if(mode != "File", member + " " + mode + " is not supported by this version; use File");
}

void check_none(const std::string& member, const json::Object& object, std::string_view name,
                Problems& problems) {
  const auto value = json::opt_string(object, name).value_or("None");
  problems.add_if(value != "None", member + " " + value + " goes with Pipe mode only; use None");
}

void check_local_path(const std::string& member, const std::string& path, Problems& problems) {
  problems.add_if(!below_opt_ml(path),
                  member + " is \"" + path +
                      "\", it must be below /opt/ml/ and without \"..\", \".\" and \"//\": nothing else "
                      "is private to the job");
}

void add_channel(domain::Channel channel, const std::string& name_member, domain::Workload& workload,
                 Problems& problems) {
  for (const auto& other : workload.channels) {
    problems.add_if(other.name == channel.name,
                    name_member + " \"" + channel.name + "\" is used twice; names must differ");
  }
  workload.channels.push_back(std::move(channel));
}

}  // namespace muster::api::sagemaker::detail
