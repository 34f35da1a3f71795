// What every node of a job has to do, in words that training jobs, processing jobs and later Batch share.
//
// The api folder makes a Workload from a request; it is stored beside the request, immutable, and given to
// each runner in its NodeLaunch. Nothing here depends on a node. Pure values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/time.h"
#include "domain/job.h"

namespace muster::domain {

enum class Distribution { fully_replicated, sharded_by_s3_key };

struct Channel {
  std::string name;    // "train", or the processing input's name
  std::string s3_uri;  // s3://bucket/prefix: every key that begins with it
  Distribution distribution = Distribution::fully_replicated;
  std::string local_path;    // "/opt/ml/input/data/train"
  std::string content_type;  // passed through to inputdataconfig.json
  std::string record_wrapper = "None";
  bool operator==(const Channel&) const = default;
};

struct Output {
  enum class Form { raw, tar_gz };
  std::string name;        // "model", "output", or the processing output's name
  std::string local_path;  // "/opt/ml/model"
  // raw: the prefix that files go below. tar_gz: the key of the archive.
  std::string s3_uri;
  Form form = Form::raw;
  bool merged = false;      // all nodes' files in one archive or prefix, sent by rank 0
  bool continuous = false;  // also uploaded while the job runs (processing: Continuous)
  bool operator==(const Output&) const = default;
};

struct CheckpointSync {
  std::string s3_uri;  // empty: none
  std::string local_path = "/opt/ml/checkpoints";
  bool operator==(const CheckpointSync&) const = default;
};

struct Workload {
  JobKind kind = JobKind::training;
  std::string job_name;
  std::string job_arn;
  std::string region;
  std::string role_arn;
  std::string image;  // as requested
  // What the [images] table made of it: a built-in ("train", "data") or "host".
  std::string program;
  std::vector<std::string> entrypoint;  // empty: the image's own command
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;
  std::map<std::string, std::string> hyperparameters;
  std::string instance_type;
  std::vector<Channel> channels;
  std::vector<Output> outputs;
  CheckpointSync checkpoint;
  // Files under /opt/ml with content that the request determines, path -> content: processingjobconfig.json.
  std::map<std::string, std::string> files;
  Millis max_runtime{86'400'000};
  Millis grace{120'000};
  bool operator==(const Workload&) const = default;
};

}  // namespace muster::domain
