// The SageMaker statuses of a job: total pure functions of the domain's states.
//
//   training, primary     InProgress -> Completed | Failed | (Stopping -> Stopped)
//   training, secondary   Starting, Pending, Downloading, Training, Stopping, Uploading,
//                         Completed | Failed | Stopped | MaxRuntimeExceeded
//   processing            InProgress, Completed, Failed, Stopping, Stopped
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/job.h"

namespace muster::api::sagemaker {

// The primary status, which is also the status of a processing job. `stop`: why a job that has not ended is
// being stopped. It shows as Stopping when a user or the run time limit is the cause; a job that winds down
// because it failed does not.
std::string_view primary_status(domain::Phase phase, std::optional<domain::Cause> stop,
                                std::optional<domain::Outcome> outcome);
std::string_view primary_status(const domain::Job& job);

struct StatusTransition {
  std::string_view status;
  Time start;
  std::optional<Time> end;  // of the last one: set when the job has ended
  std::string message;
};

// The whole history of a training job, oldest first, never empty. `explanation` (why it waits) becomes the
// message of a job that still waits; `notice` ("ml.p4d.24xlarge is rehearsed on local nodes") is added to the
// message of Starting.
std::vector<StatusTransition> secondary_transitions(const domain::Job& job, std::string_view explanation,
                                                    std::string_view notice);
// The last of them, from what List knows.
std::string_view secondary_status(domain::Phase phase, std::optional<domain::Cause> stop,
                                  std::optional<domain::Outcome> outcome, std::optional<domain::Cause> cause);

// "AlgorithmError: exit code 3: ...", "InternalServerError: ...": at most 1,024 characters. Empty unless
// failed.
std::string failure_reason(const domain::Job& job);

}  // namespace muster::api::sagemaker
