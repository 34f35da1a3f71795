// Training jobs: CreateTrainingJob, DescribeTrainingJob, ListTrainingJobs, StopTrainingJob.
#include "api/sagemaker/detail.h"
#include "api/sagemaker/status.h"

namespace muster::api::sagemaker::detail {
namespace {

using domain::JobKind;

constexpr std::int64_t kMaxRuntimeMost = 2'419'200;  // seconds: 28 days

std::string without_trailing_slash(std::string uri) {
  while (!uri.empty() && uri.back() == '/') uri.pop_back();
  return uri;
}

std::string output_prefix(const json::Object& output, std::string_view job) {
  return without_trailing_slash(json::opt_string(output, "S3OutputPath").value_or("")) + "/" +
         std::string(job) + "/output";
}

bool compressed(const json::Object& output) {
  return json::opt_string(output, "CompressionType").value_or("GZIP") == "GZIP";
}

std::string model_artifacts(const json::Object& request, std::string_view job) {
  const auto* output = json::opt_object(request, "OutputDataConfig");
  if (output == nullptr) return {};
  return output_prefix(*output, job) + (compressed(*output) ? "/model.tar.gz" : "/model/");
}

domain::Channel make_channel(const Context& context, const json::Object& channel, const std::string& path,
                             Problems& problems) {
  domain::Channel out;
  out.name = json::opt_string(channel, "ChannelName").value_or("");
  out.local_path = "/opt/ml/input/data/" + out.name;
  out.content_type = json::opt_string(channel, "ContentType").value_or("");
  out.record_wrapper = json::opt_string(channel, "RecordWrapperType").value_or("None");
  problems.add_if(out.name == "." || out.name == "..", path + ".ChannelName may not be \"" + out.name + "\"");
  check_file_mode(path + ".InputMode", channel, "InputMode", problems);
  check_none(path + ".CompressionType", channel, "CompressionType", problems);
  check_none(path + ".RecordWrapperType", channel, "RecordWrapperType", problems);
  const auto* source = json::opt_object(channel, "DataSource");
  const auto* s3 = source == nullptr ? nullptr : json::opt_object(*source, "S3DataSource");
  if (s3 == nullptr) {
    problems.add(path +
                 ".DataSource must be an S3DataSource: other sources are not supported by this version");
  } else {
    read_s3_source(context, *s3, path + ".DataSource.S3DataSource", out, problems);
  }
  return out;
}

void add_channels(const Context& context, const json::Object& request, domain::Workload& workload,
                  Problems& problems) {
  const auto* list = json::opt_array(request, "InputDataConfig");
  if (list == nullptr) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto path = "InputDataConfig[" + std::to_string(i) + "]";
    add_channel(make_channel(context, (*list)[i].as_object(), path, problems), path + ".ChannelName",
                workload, problems);
  }
}

void add_outputs(const Context& context, const json::Object& request, domain::Workload& workload,
                 Problems& problems) {
  const auto* config = json::opt_object(request, "OutputDataConfig");
  if (config == nullptr) return;
  const auto path = json::opt_string(*config, "S3OutputPath").value_or("");
  check_bucket(context, "OutputDataConfig.S3OutputPath", path, problems);
  refuse_kms_key(*config, "OutputDataConfig", "KmsKeyId", problems);
  const bool archive = compressed(*config);
  const auto prefix = output_prefix(*config, workload.job_name);
  const auto add = [&](std::string name, std::string local) {
    domain::Output output;
    output.s3_uri = prefix + "/" + name + (archive ? ".tar.gz" : "/");
    output.name = std::move(name);
    output.local_path = std::move(local);
    output.form = archive ? domain::Output::Form::tar_gz : domain::Output::Form::raw;
    output.merged = true;
    workload.outputs.push_back(std::move(output));
  };
  add("model", "/opt/ml/model");
  add("output", "/opt/ml/output/data");
}

void add_checkpoint(const Context& context, const json::Object& request, domain::CheckpointSync& sync,
                    Problems& problems) {
  const auto* checkpoint = json::opt_object(request, "CheckpointConfig");
  if (checkpoint == nullptr) return;
  sync.s3_uri = json::opt_string(*checkpoint, "S3Uri").value_or("");
  sync.local_path = json::opt_string(*checkpoint, "LocalPath").value_or("/opt/ml/checkpoints");
  check_bucket(context, "CheckpointConfig.S3Uri", sync.s3_uri, problems);
  check_local_path("CheckpointConfig.LocalPath", sync.local_path, problems);
}

void add_algorithm(const Context& context, const json::Object& request, domain::Workload& workload,
                   Problems& problems) {
  const auto* algorithm = json::opt_object(request, "AlgorithmSpecification");
  if (algorithm == nullptr || !algorithm->contains("TrainingImage")) {
    return problems.add(
        "AlgorithmSpecification.TrainingImage is required and missing (AlgorithmName is not supported)");
  }
  read_program(context, *algorithm, "AlgorithmSpecification", "TrainingImage", workload, problems);
  check_file_mode("AlgorithmSpecification.TrainingInputMode", *algorithm, "TrainingInputMode", problems);
}

// What this version cannot do, refused by name.
void refuse_unsupported(const json::Object& request, Problems& problems) {
  const auto* resources = json::opt_object(request, "ResourceConfig");
  if (resources == nullptr) {
    problems.add("ResourceConfig is required and missing");
  } else {
    problems.add_if(
        resources->contains("InstanceGroups"),
        "ResourceConfig.InstanceGroups: heterogeneous clusters are not supported by this version; "
        "use InstanceType and InstanceCount");
    problems.add_if(
        json::opt_int(*resources, "KeepAlivePeriodInSeconds").value_or(0) > 0,
        "ResourceConfig.KeepAlivePeriodInSeconds: warm pools are not supported by this version; use 0");
  }
  refuse_network(request, "", problems);
  const auto* condition = json::opt_object(request, "StoppingCondition");
  problems.add_if(
      condition != nullptr && condition->contains("MaxPendingTimeInSeconds"),
      "StoppingCondition.MaxPendingTimeInSeconds is not supported by this version: jobs wait until "
      "nodes are free or they are stopped; leave it out");
  for (const auto* name :
       {"ServerlessJobConfig", "SessionChainingConfig", "ModelPackageConfig", "MlflowConfig"}) {
    problems.add_if(request.contains(name), std::string(name) + " is not supported by this version");
  }
}

void check_max_runtime(const json::Object& request, Problems& problems) {
  const auto seconds = max_runtime_seconds(request);
  problems.add_if(seconds > kMaxRuntimeMost, "StoppingCondition.MaxRuntimeInSeconds is " +
                                                 std::to_string(seconds) + ", at most " +
                                                 std::to_string(kMaxRuntimeMost) + " is allowed");
  const auto* condition = json::opt_object(request, "StoppingCondition");
  if (condition == nullptr) return;
  const auto wait = json::opt_int(*condition, "MaxWaitTimeInSeconds");
  problems.add_if(wait && *wait < seconds, "StoppingCondition.MaxWaitTimeInSeconds is " +
                                               std::to_string(wait.value_or(0)) +
                                               ", less than MaxRuntimeInSeconds " + std::to_string(seconds));
}

ApiResult<json::Object> create(const Context& context, const json::Object& request, const Caller& caller) {
  Problems problems;
  refuse_unsupported(request, problems);
  check_max_runtime(request, problems);
  auto command = begin_job(JobKind::training, json::opt_string(request, "TrainingJobName").value_or(""),
                           request, caller);
  if (const auto* retry = json::opt_object(request, "RetryStrategy")) {
    command.retries = static_cast<int>(json::opt_int(*retry, "MaximumRetryAttempts").value_or(0));
  }
  if (const auto* resources = json::opt_object(request, "ResourceConfig")) {
    read_nodes(context, *resources, "ResourceConfig", command, problems);
  }
  auto& workload = command.workload;
  workload.hyperparameters = string_map(request, "HyperParameters");
  add_algorithm(context, request, workload, problems);
  add_channels(context, request, workload, problems);
  add_outputs(context, request, workload, problems);
  add_checkpoint(context, request, workload.checkpoint, problems);
  if (!problems.empty()) return problems.refuse();
  command.request = json::dump(request);
  return submit(context, std::move(command), caller, "TrainingJobArn");
}

json::Array transitions_json(const std::vector<StatusTransition>& transitions) {
  json::Array out;
  for (const auto& transition : transitions) {
    json::Object entry;
    entry["Status"] = transition.status;
    entry["StartTime"] = transition.start.unix_seconds();
    if (transition.end) entry["EndTime"] = transition.end->unix_seconds();
    entry["StatusMessage"] = transition.message;
    out.emplace_back(std::move(entry));
  }
  return out;
}

void add_times(const domain::Job& job, json::Object& answer) {
  answer["CreationTime"] = job.created.unix_seconds();
  answer["LastModifiedTime"] = job.modified.unix_seconds();
  if (job.started) answer["TrainingStartTime"] = job.started->unix_seconds();
  if (!job.ended) return;
  answer["TrainingEndTime"] = job.ended->unix_seconds();
  if (job.started) {
    const auto seconds = (*job.ended - *job.started).count() / 1000;
    answer["TrainingTimeInSeconds"] = std::max<std::int64_t>(seconds, 1);
    answer["BillableTimeInSeconds"] = std::max<std::int64_t>(seconds, 1);
  }
}

ApiResult<json::Object> describe(const Context& context, const json::Object& request, const Caller& caller) {
  const auto name = json::opt_string(request, "TrainingJobName").value_or("");
  const auto view = context.service.job(JobKind::training, name);
  if (!view) return translate(view.error());
  MUSTER_TRY_API(const auto created, json::parse_object(view->request));
  const auto& job = view->job;
  auto answer = context.model->common_members("sagemaker", "DescribeTrainingJob", created);
  answer["TrainingJobArn"] = arn(caller, job.kind, job.name);
  answer["TrainingJobStatus"] = primary_status(job);
  const auto* resources = json::opt_object(created, "ResourceConfig");
  const auto notice =
      resources == nullptr ? "" : rehearsal_notice(json::opt_string(*resources, "InstanceType").value_or(""));
  const auto transitions = secondary_transitions(job, view->explanation, notice);
  answer["SecondaryStatus"] = transitions.back().status;
  answer["SecondaryStatusTransitions"] = transitions_json(transitions);
  answer["ModelArtifacts"] = {{"S3ModelArtifacts", model_artifacts(created, job.name)}};
  if (!answer.contains("StoppingCondition")) {
    answer["StoppingCondition"] = {{"MaxRuntimeInSeconds", job.max_runtime.count() / 1000}};
  }
  if (auto* output = answer["OutputDataConfig"].if_object();
      output != nullptr && !output->contains("KmsKeyId")) {
    (*output)["KmsKeyId"] = "";
  }
  for (const auto* flag :
       {"EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining"}) {
    if (!answer.contains(flag)) answer[flag] = false;
  }
  add_times(job, answer);
  const auto reason = failure_reason(job);
  if (!reason.empty()) answer["FailureReason"] = reason;
  return answer;
}

ApiResult<json::Object> list(const Context& context, const json::Object& request, const Caller& caller) {
  if (request.contains("WarmPoolStatusEquals") || request.contains("TrainingPlanArnEquals")) {
    json::Object none;  // no job has a warm pool or a training plan
    none["TrainingJobSummaries"] = json::Array{};
    return none;
  }
  const ListWords words{JobKind::training, "TrainingJobSummaries"};
  return list_jobs(context, words, request, [&](const service::JobSummary& job) {
    json::Object out;
    out["TrainingJobName"] = job.name;
    out["TrainingJobArn"] = arn(caller, job.kind, job.name);
    out["CreationTime"] = job.created.unix_seconds();
    out["LastModifiedTime"] = job.modified.unix_seconds();
    if (job.ended) out["TrainingEndTime"] = job.ended->unix_seconds();
    out["TrainingJobStatus"] = primary_status(job.phase, job.stop, job.outcome);
    out["SecondaryStatus"] = secondary_status(job.phase, job.stop, job.outcome, job.cause);
    return out;
  });
}

ApiResult<json::Object> stop_by_name(const Context& context, const json::Object& request, const Caller&) {
  return stop(context, JobKind::training, json::opt_string(request, "TrainingJobName").value_or(""));
}

}  // namespace

void add_training(const std::shared_ptr<const Context>& context, JsonOperations& operations) {
  add_operation(context, "CreateTrainingJob", create, operations);
  add_operation(context, "DescribeTrainingJob", describe, operations);
  add_operation(context, "ListTrainingJobs", list, operations);
  add_operation(context, "StopTrainingJob", stop_by_name, operations);
}

}  // namespace muster::api::sagemaker::detail
