// Shared by the files of this folder; not for others. Handlers call these from many threads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/sagemaker/sagemaker.h"
#include "control/control.h"

namespace muster::api::sagemaker::detail {

struct Context {
  service::Service& service;
  std::shared_ptr<const Model> model;
  Options options;
};

std::string arn(const Caller& caller, domain::JobKind kind, std::string_view name);

// The errors of the service in SageMaker's words.
tl::unexpected<ApiError> translate(const Error& error);

// Collects what is wrong with a request, so that one answer names it all.
class Problems {
 public:
  explicit Problems(std::vector<std::string> found = {}) : found_(std::move(found)) {}
  void add(std::string sentence) { found_.push_back(std::move(sentence)); }
  void add_if(bool wrong, std::string sentence) {
    if (wrong) add(std::move(sentence));
  }
  bool empty() const { return found_.empty(); }
  tl::unexpected<ApiError> refuse() const;

 private:
  std::vector<std::string> found_;
};

// Refuses what no environment, command line or file name can hold: NUL in any string; other control
// characters in names and local paths, which become parts of file names and of log lines, and in keys.
void check_characters(const json::Object& request, Problems& problems);

// Checks that an s3:// URI has a bucket, that exists where that can be known.
void check_bucket(const Context& context, std::string_view member, std::string_view uri, Problems& problems);

// The program of an image and whether the instance type may be used here.
std::string check_image(const Context& context, std::string_view member, const std::string& image,
                        Problems& problems);
void check_instance_type(const Context& context, std::string_view member, const std::string& type,
                         Problems& problems);
std::string rehearsal_notice(std::string_view instance_type);

std::vector<std::string> string_list(const json::Object& object, std::string_view name);
std::map<std::string, std::string> string_map(const json::Object& object, std::string_view name);

// Create*: each reads the members that both kinds of job have, at the place `path` names in what is refused.
std::int64_t max_runtime_seconds(const json::Object& request);
control::SubmitJob begin_job(domain::JobKind kind, const std::string& name, const json::Object& request,
                             const Caller& caller);
void read_nodes(const Context& context, const json::Object& resources, const std::string& path,
                control::SubmitJob& command, Problems& problems);
void read_program(const Context& context, const json::Object& specification, const std::string& path,
                  const std::string& image_member, domain::Workload& workload, Problems& problems);
void read_s3_source(const Context& context, const json::Object& s3, const std::string& path,
                    domain::Channel& channel, Problems& problems);
// What is promised about the network, and cannot be kept here. `path` ends in a dot, or is empty.
void refuse_network(const json::Object& network, const std::string& path, Problems& problems);
// An empty key is none: some clients send "".
void refuse_kms_key(const json::Object& object, const std::string& path, std::string_view name,
                    Problems& problems);
// `member` is the full name of object[name].
void check_file_mode(const std::string& member, const json::Object& object, std::string_view name,
                     Problems& problems);
void check_none(const std::string& member, const json::Object& object, std::string_view name,
                Problems& problems);
void check_local_path(const std::string& member, const std::string& path, Problems& problems);
// Names of channels differ within a job.
void add_channel(domain::Channel channel, const std::string& name_member, domain::Workload& workload,
                 Problems& problems);

// List*: filters, sorting and paging that training and processing jobs share. `show` writes one summary.
// NextToken names the last job shown, so jobs that arrive between pages neither repeat nor hide others.
struct ListWords {
  domain::JobKind kind;
  std::string_view summaries;  // "TrainingJobSummaries"
};
using ShowSummary = std::function<json::Object(const service::JobSummary&)>;
ApiResult<json::Object> list_jobs(const Context& context, const ListWords& words, const json::Object& request,
                                  const ShowSummary& show);

// Create, Stop: the same for both kinds.
ApiResult<json::Object> submit(const Context& context, control::SubmitJob command, const Caller& caller,
                               std::string_view arn_member);
ApiResult<json::Object> stop(const Context& context, domain::JobKind kind, const std::string& name);

void add_training(const std::shared_ptr<const Context>& context, JsonOperations& operations);
void add_processing(const std::shared_ptr<const Context>& context, JsonOperations& operations);

// An operation written as a free function of the context.
using Operation = ApiResult<json::Object> (*)(const Context&, const json::Object&, const Caller&);

// Adds an operation that only sees requests that satisfy the table of constraints.
void add_operation(const std::shared_ptr<const Context>& context, std::string name, Operation operation,
                   JsonOperations& operations);

}  // namespace muster::api::sagemaker::detail
