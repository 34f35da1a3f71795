// Processing jobs: CreateProcessingJob, DescribeProcessingJob, ListProcessingJobs, StopProcessingJob.
#include <set>

#include "api/sagemaker/detail.h"
#include "api/sagemaker/status.h"

namespace muster::api::sagemaker::detail {
namespace {

using domain::JobKind;

constexpr std::int64_t kMaxRuntimeDefault = 86'400;  // seconds

void check_local_path(const std::string& path, const std::string& member, Problems& problems) {
  problems.add_if(path.rfind("/opt/ml/", 0) != 0 || path.find("/../") != std::string::npos,
                  member + " is \"" + path + "\", it must be below /opt/ml/: nothing else is private to the job");
}

domain::Channel make_input(const Context& context, const json::Object& input, const std::string& path,
                           Problems& problems) {
  domain::Channel out;
  out.name = json::opt_string(input, "InputName").value_or("");
  const auto* s3 = json::opt_object(input, "S3Input");
  if (s3 == nullptr) {
    problems.add(path + ".S3Input is needed: other sources are not supported by this version");
    return out;
  }
  out.s3_uri = json::opt_string(*s3, "S3Uri").value_or("");
  out.local_path = json::opt_string(*s3, "LocalPath").value_or("/opt/ml/processing/input/" + out.name);
  check_bucket(context, path + ".S3Input.S3Uri", out.s3_uri, problems);
  check_local_path(out.local_path, path + ".S3Input.LocalPath", problems);
  const auto type = json::opt_string(*s3, "S3DataType").value_or("");
  problems.add_if(type != "S3Prefix",
                  path + ".S3Input.S3DataType " + type + " is not supported by this version; use S3Prefix");
  const auto mode = json::opt_string(*s3, "S3InputMode").value_or("File");
  problems.add_if(mode != "File", path + ".S3Input.S3InputMode " + mode + " is not supported by this version; use File");
  const auto compression = json::opt_string(*s3, "S3CompressionType").value_or("None");
  problems.add_if(compression != "None",
                  path + ".S3Input.S3CompressionType " + compression + " goes with Pipe mode only; use None");
  if (json::opt_string(*s3, "S3DataDistributionType").value_or("") == "ShardedByS3Key") {
    out.distribution = domain::Distribution::sharded_by_s3_key;
  }
  return out;
}

void add_inputs(const Context& context, const json::Object& request, domain::Workload& workload,
                Problems& problems) {
  const auto* list = json::opt_array(request, "ProcessingInputs");
  if (list == nullptr) return;
  std::set<std::string> names;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto path = "ProcessingInputs[" + std::to_string(i) + "]";
    auto input = make_input(context, (*list)[i].as_object(), path, problems);
    problems.add_if(!names.insert(input.name).second,
                    path + ".InputName \"" + input.name + "\" is used twice; names must differ");
    workload.channels.push_back(std::move(input));
  }
}

void add_outputs(const Context& context, const json::Object& request, domain::Workload& workload,
                 Problems& problems) {
  const auto* config = json::opt_object(request, "ProcessingOutputConfig");
  const auto* list = config == nullptr ? nullptr : json::opt_array(*config, "Outputs");
  if (list == nullptr) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto path = "ProcessingOutputConfig.Outputs[" + std::to_string(i) + "]";
    const auto& source = (*list)[i].as_object();
    const auto* s3 = json::opt_object(source, "S3Output");
    if (s3 == nullptr) {
      problems.add(path + ".S3Output is needed: other destinations are not supported by this version");
      continue;
    }
    domain::Output output;
    output.name = json::opt_string(source, "OutputName").value_or("");
    output.local_path = json::opt_string(*s3, "LocalPath").value_or("/opt/ml/processing/output/" + output.name);
    output.s3_uri = json::opt_string(*s3, "S3Uri").value_or("");
    output.continuous = json::opt_string(*s3, "S3UploadMode").value_or("EndOfJob") == "Continuous";
    check_bucket(context, path + ".S3Output.S3Uri", output.s3_uri, problems);
    check_local_path(output.local_path, path + ".S3Output.LocalPath", problems);
    workload.outputs.push_back(std::move(output));
  }
}

const json::Object* cluster_config(const json::Object& request) {
  const auto* resources = json::opt_object(request, "ProcessingResources");
  return resources == nullptr ? nullptr : json::opt_object(*resources, "ClusterConfig");
}

// /opt/ml/config/processingjobconfig.json: the request, less what only the service needs, and the ARN.
std::string job_config(const json::Object& request, const std::string& job_arn) {
  auto config = request;
  config.erase("Tags");
  config["ProcessingJobArn"] = job_arn;
  return json::pretty(config);
}

ApiResult<json::Object> create(const Context& context, const json::Object& request, const Caller& caller) {
  Problems problems;
  control::SubmitJob command;
  command.kind = JobKind::processing;
  command.name = json::opt_string(request, "ProcessingJobName").value_or("");
  auto seconds = kMaxRuntimeDefault;
  if (const auto* condition = json::opt_object(request, "StoppingCondition")) {
    seconds = json::opt_int(*condition, "MaxRuntimeInSeconds").value_or(kMaxRuntimeDefault);
  }
  command.max_runtime = std::chrono::seconds(seconds);
  auto& workload = command.workload;
  workload.kind = command.kind;
  workload.job_name = command.name;
  workload.job_arn = arn(caller, command.kind, command.name);
  workload.region = caller.region;
  workload.role_arn = json::opt_string(request, "RoleArn").value_or("");
  workload.max_runtime = command.max_runtime;
  workload.grace = command.grace;
  const auto* cluster = cluster_config(request);
  if (cluster == nullptr) {
    problems.add("ProcessingResources.ClusterConfig is required and missing");
  } else {
    command.nodes = static_cast<int>(json::opt_int(*cluster, "InstanceCount").value_or(0));
    workload.instance_type = json::opt_string(*cluster, "InstanceType").value_or("");
    problems.add_if(command.nodes < 1, "ProcessingResources.ClusterConfig.InstanceCount is " +
                                           std::to_string(command.nodes) + ", at least 1 is needed");
    if (workload.instance_type.empty()) {
      problems.add("ProcessingResources.ClusterConfig.InstanceType is required and missing");
    } else {
      check_instance_type(context, "ProcessingResources.ClusterConfig.InstanceType", workload.instance_type, problems);
    }
  }
  if (const auto* app = json::opt_object(request, "AppSpecification")) {
    workload.image = json::opt_string(*app, "ImageUri").value_or("");
    workload.program = check_image(context, "AppSpecification.ImageUri", workload.image, problems);
    workload.entrypoint = string_list(*app, "ContainerEntrypoint");
    workload.arguments = string_list(*app, "ContainerArguments");
    problems.add_if(workload.program == "host" && workload.entrypoint.empty(),
                    "AppSpecification.ContainerEntrypoint is needed with image \"" + workload.image +
                        "\", which runs on the machine's own root file system and has no command of its own");
  }
  if (const auto* network = json::opt_object(request, "NetworkConfig")) {
    problems.add_if(json::opt_bool(*network, "EnableNetworkIsolation").value_or(false),
                    "NetworkConfig.EnableNetworkIsolation cannot be enforced: local nodes share the machine's "
                    "network; use false");
  }
  workload.environment = string_map(request, "Environment");
  add_inputs(context, request, workload, problems);
  add_outputs(context, request, workload, problems);
  if (!problems.empty()) return problems.refuse();
  workload.files["/opt/ml/config/processingjobconfig.json"] = job_config(request, workload.job_arn);
  command.request = json::dump(request);
  return submit(context, std::move(command), caller, "ProcessingJobArn");
}

ApiResult<json::Object> describe(const Context& context, const json::Object& request, const Caller& caller) {
  const auto name = json::opt_string(request, "ProcessingJobName").value_or("");
  const auto view = context.service.job(JobKind::processing, name);
  if (!view) return translate(view.error());
  MUSTER_TRY_API(const auto created, json::parse_object(view->request));
  const auto& job = view->job;
  auto answer = context.model->common_members("sagemaker", "DescribeProcessingJob", created);
  answer["ProcessingJobArn"] = arn(caller, job.kind, job.name);
  answer["ProcessingJobStatus"] = primary_status(job);
  answer["CreationTime"] = job.created.unix_seconds();
  answer["LastModifiedTime"] = job.modified.unix_seconds();
  if (job.started) answer["ProcessingStartTime"] = job.started->unix_seconds();
  if (job.ended) answer["ProcessingEndTime"] = job.ended->unix_seconds();
  if (!answer.contains("StoppingCondition")) {
    answer["StoppingCondition"] = {{"MaxRuntimeInSeconds", job.max_runtime.count() / 1000}};
  }
  const auto reason = failure_reason(job);
  if (!reason.empty()) answer["FailureReason"] = reason;
  if (job.end && !job.end->exit_message.empty()) answer["ExitMessage"] = job.end->exit_message;
  return answer;
}

ApiResult<json::Object> list(const Context& context, const json::Object& request, const Caller& caller) {
  const ListWords words{JobKind::processing, "ProcessingJobSummaries"};
  return list_jobs(context, words, request, [&](const service::JobSummary& job) {
    json::Object out;
    out["ProcessingJobName"] = job.name;
    out["ProcessingJobArn"] = arn(caller, job.kind, job.name);
    out["CreationTime"] = job.created.unix_seconds();
    out["LastModifiedTime"] = job.modified.unix_seconds();
    if (job.ended) out["ProcessingEndTime"] = job.ended->unix_seconds();
    out["ProcessingJobStatus"] = primary_status(job.phase, job.stopping, job.outcome);
    return out;
  });
}

ApiResult<json::Object> stop_by_name(const Context& context, const json::Object& request, const Caller&) {
  return stop(context, JobKind::processing, json::opt_string(request, "ProcessingJobName").value_or(""));
}

}  // namespace

void add_processing(const std::shared_ptr<const Context>& context, JsonOperations& operations) {
  add_operation(context, "CreateProcessingJob", create, operations);
  add_operation(context, "DescribeProcessingJob", describe, operations);
  add_operation(context, "ListProcessingJobs", list, operations);
  add_operation(context, "StopProcessingJob", stop_by_name, operations);
}

}  // namespace muster::api::sagemaker::detail
