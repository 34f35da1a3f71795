// A request in TOML: the members of CreateTrainingJob or CreateProcessingJob by their API names.
//
// What is left out gets a default that suits a local service (name, role, instance type, output path); an
// S3Uri of an input that is a path on this machine, relative to the file, is uploaded and replaced. Reading
// is pure but for the file itself and looking whether such paths exist.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace muster::cli {

enum class RequestKind { training, processing };

// The members of the request, as the service model names them.
std::vector<std::string> request_members(RequestKind kind);

struct Upload {
  std::string local_path;  // file or folder
  std::string s3_uri;      // prefix that its files go below
};

struct PreparedRequest {
  std::string job_name;
  json::Object request;
  std::vector<Upload> uploads;
  bool needs_bucket = false;  // names RequestDefaults::bucket
};

struct RequestDefaults {
  std::string account = "000000000000";
  std::string bucket;       // for uploads and outputs
  std::string name_suffix;  // "7f3a": makes a name of the file's stem when none is given
};

// Where below the bucket the files of a job's input (a channel, or an input of a processing job) are
// uploaded.
std::string upload_prefix(const std::string& job_name, const std::string& input);

// Errors name the file, the line and the member; members that the request does not have are refused.
Result<PreparedRequest> prepare_request(const std::string& toml_file, RequestKind kind,
                                        const RequestDefaults& defaults);

}  // namespace muster::cli
