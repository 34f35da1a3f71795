// Processing jobs: CreateProcessingJob, DescribeProcessingJob, ListProcessingJobs, StopProcessingJob.
#include "api/sagemaker/detail.h"
#include "api/sagemaker/status.h"

namespace muster::api::sagemaker::detail {
namespace {

using domain::JobKind;

domain::Channel make_input(const Context& context, const json::Object& input, const std::string& path,
                           Problems& problems) {
  domain::Channel out;
  out.name = json::opt_string(input, "InputName").value_or("");
  const auto* s3 = json::opt_object(input, "S3Input");
  if (s3 == nullptr) {
    problems.add(path + ".S3Input is needed: other sources are not supported by this version");
    return out;
  }
  out.local_path = json::opt_string(*s3, "LocalPath").value_or("/opt/ml/processing/input/" + out.name);
  read_s3_source(context, *s3, path + ".S3Input", out, problems);
  check_local_path(path + ".S3Input.LocalPath", out.local_path, problems);
  check_file_mode(path + ".S3Input.S3InputMode", *s3, "S3InputMode", problems);
  check_none(path + ".S3Input.S3CompressionType", *s3, "S3CompressionType", problems);
  return out;
}

void add_inputs(const Context& context, const json::Object& request, domain::Workload& workload,
                Problems& problems) {
  const auto* list = json::opt_array(request, "ProcessingInputs");
  if (list == nullptr) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto path = "ProcessingInputs[" + std::to_string(i) + "]";
    add_channel(make_input(context, (*list)[i].as_object(), path, problems), path + ".InputName", workload,
                problems);
  }
}

void add_outputs(const Context& context, const json::Object& request, domain::Workload& workload,
                 Problems& problems) {
  const auto* config = json::opt_object(request, "ProcessingOutputConfig");
  if (config != nullptr) refuse_kms_key(*config, "ProcessingOutputConfig", "KmsKeyId", problems);
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
    output.local_path =
        json::opt_string(*s3, "LocalPath").value_or("/opt/ml/processing/output/" + output.name);
    output.s3_uri = json::opt_string(*s3, "S3Uri").value_or("");
    output.continuous = json::opt_string(*s3, "S3UploadMode").value_or("EndOfJob") == "Continuous";
    check_bucket(context, path + ".S3Output.S3Uri", output.s3_uri, problems);
    check_local_path(path + ".S3Output.LocalPath", output.local_path, problems);
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
  auto command = begin_job(JobKind::processing, json::opt_string(request, "ProcessingJobName").value_or(""),
                           request, caller);
  if (const auto* cluster = cluster_config(request)) {
    read_nodes(context, *cluster, "ProcessingResources.ClusterConfig", command, problems);
  } else {
    problems.add("ProcessingResources.ClusterConfig is required and missing");
  }
  auto& workload = command.workload;
  if (const auto* app = json::opt_object(request, "AppSpecification")) {
    read_program(context, *app, "AppSpecification", "ImageUri", workload, problems);
  }
  if (const auto* network = json::opt_object(request, "NetworkConfig")) {
    refuse_network(*network, "NetworkConfig.", problems);
  }
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
    out["ProcessingJobStatus"] = primary_status(job.phase, job.stop, job.outcome);
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
