// Amazon SageMaker Training and Processing: requests in, domain commands, answers out.
//
// Create, Describe, List and Stop of training and processing jobs, and ListTags. Each request is checked
// against the table of constraints (api/model), then against what this service can do, and what it cannot do
// is refused by name: nothing is accepted and silently ignored that would change what the job does, or whom
// it is protected from (network isolation, traffic encryption, VPCs, KMS keys).
//
// Accepted without effect, because SDKs send it and a job's results do not hang on it: VolumeSizeInGB,
// InstancePlacementConfig, TrainingPlanArn; EnableManagedSpotTraining and its MaxWaitTimeInSeconds (nothing
// is interrupted, so jobs only wait for nodes, as long as that takes); MetricDefinitions, ProfilerConfig,
// DebugHookConfig, their rules, TensorBoardOutputConfig, ExperimentConfig, RemoteDebugConfig,
// InfraCheckConfig.
//
// Handlers block on the service; called from many threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/api.h"
#include "api/model/model.h"
#include "api/sagemaker/images.h"
#include "service/service.h"

namespace muster::api::sagemaker {

struct Options {
  PatternTable images;
  // Instance type pattern -> "local" (rehearsed on local nodes) or "refuse".
  PatternTable instance_types = {{"ml.*", "local"}};
  // Whether a bucket is there; not set: not checked at creation.
  std::function<bool(const std::string& bucket)> bucket_exists;
};

// The operations by name, for the JSON 1.1 router ("SageMaker.<Operation>").
JsonOperations operations(service::Service& service, std::shared_ptr<const Model> model, Options options);

}  // namespace muster::api::sagemaker
