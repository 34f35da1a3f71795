#include "cli/request_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "base/file.h"
#include "base/s3_uri.h"
#include "base/text.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

json::Value to_json(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    json::Object out;
    for (const auto& [key, value] : *table) out[std::string_view(key.str())] = to_json(value);
    return out;
  }
  if (const auto* array = node.as_array()) {
    json::Array out;
    for (const auto& element : *array) out.push_back(to_json(element));
    return out;
  }
  if (const auto text = node.value_exact<std::string>()) return json::Value(*text);
  if (const auto number = node.value_exact<std::int64_t>()) return json::Value(*number);
  if (const auto real = node.value_exact<double>()) return json::Value(*real);
  if (const auto flag = node.value_exact<bool>()) return json::Value(*flag);
  return nullptr;  // dates: no request has one
}

Result<json::Object> read_toml(const std::string& path) {
  if (const auto regular = check_regular(path); !regular) {
    if (regular.error().code == ErrorCode::not_found)
      return fail(ErrorCode::invalid_argument, "there is no file " + path);
    return tl::unexpected(regular.error().with_context("name the TOML file of the request"));
  }
  try {
    auto request = to_json(toml::parse_file(path)).as_object();
    if (request.empty())
      return fail(ErrorCode::invalid_argument, path + " is empty; write the members of the request into it");
    return request;
  } catch (const toml::parse_error& error) {
    return fail(ErrorCode::invalid_argument, path + ", line " + std::to_string(error.source().begin.line) +
                                                 ": " + std::string(error.description()));
  }
}

// The shortest text that reads back as the same number: "0.5", "0.0003".
std::string number_text(double value) {
  std::array<char, 64> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), static_cast<std::size_t>(end - buffer.data())};
}

// Hyperparameters and environment are strings on the wire; numbers and flags in the file become text.
void values_to_text(json::Object& request, std::string_view member) {
  auto* map = request.if_contains(member);
  if (map == nullptr || !map->is_object()) return;
  for (auto& entry : map->get_object()) {
    if (!entry.value().is_string() && !entry.value().is_object() && !entry.value().is_array()) {
      entry.value() =
          entry.value().is_double() ? number_text(entry.value().get_double()) : json::dump(entry.value());
    }
  }
}

// `train.steps = 400` is a table `train` to TOML, where the hyperparameter "train.steps" is meant.
Result<void> check_hyperparameters(const json::Object& request) {
  const auto* map = json::opt_object(request, "HyperParameters");
  if (map == nullptr) return {};
  for (const auto& entry : *map) {
    std::string key(entry.key());
    const json::Value* value = &entry.value();
    while (value->is_object() && !value->get_object().empty()) {
      const auto& first = *value->get_object().begin();
      key += "." + std::string(first.key());
      value = &first.value();
    }
    if (value == &entry.value()) continue;
    return fail(ErrorCode::invalid_argument,
                "HyperParameters: " + std::string(entry.key()) +
                    " is a table, because a dot in a TOML key makes one; write the key in quotes: \"" + key +
                    "\" = " + json::dump(*value));
  }
  return {};
}

// "my model_2.toml" -> "my-model-2": what a job name allows.
std::string stem_name(const std::string& path) {
  std::string out;
  for (const char c : fs::path(path).stem().string()) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (word) {
      out += c;
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "job" : out.substr(0, 50);
}

template <typename Value>
void set_default(json::Object& object, std::string_view member, Value value) {
  if (!object.contains(member)) object[member] = std::move(value);
}

json::Object& object_at(json::Object& object, std::string_view member) {
  auto& value = object[member];
  if (!value.is_object()) value = json::Object{};
  return value.get_object();
}

// What tells the two kinds of request apart.
struct Shape {
  std::string_view operation;
  std::string_view command;
  std::string_view name_member;
  std::string_view members;
};
constexpr Shape kTraining = {
    "CreateTrainingJob", "muster train", "TrainingJobName",
    "TrainingJobName HyperParameters AlgorithmSpecification RoleArn InputDataConfig OutputDataConfig "
    "ResourceConfig VpcConfig StoppingCondition Tags EnableNetworkIsolation "
    "EnableInterContainerTrafficEncryption EnableManagedSpotTraining CheckpointConfig DebugHookConfig "
    "DebugRuleConfigurations TensorBoardOutputConfig ExperimentConfig ProfilerConfig "
    "ProfilerRuleConfigurations Environment RetryStrategy RemoteDebugConfig InfraCheckConfig "
    "SessionChainingConfig ServerlessJobConfig MlflowConfig ModelPackageConfig"};
constexpr Shape kProcessing = {
    "CreateProcessingJob", "muster process", "ProcessingJobName",
    "ProcessingInputs ProcessingOutputConfig ProcessingJobName ProcessingResources StoppingCondition "
    "AppSpecification Environment NetworkConfig RoleArn Tags ExperimentConfig"};

const Shape& shape_of(RequestKind kind) { return kind == RequestKind::training ? kTraining : kProcessing; }

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  for (const auto word : split(text, ' ')) out.emplace_back(word);
  return out;
}

bool has(const std::vector<std::string>& members, const std::string& name) {
  return std::find(members.begin(), members.end(), name) != members.end();
}

// The service ignores members that it does not know, as its model does: a slip of the pen is caught here.
Result<void> check_members(const json::Object& request, RequestKind kind) {
  const auto& shape = shape_of(kind);
  const auto& other =
      shape_of(kind == RequestKind::training ? RequestKind::processing : RequestKind::training);
  const auto known = request_members(kind);
  for (const auto& entry : request) {
    const std::string name(entry.key());
    if (has(known, name)) continue;
    auto near = closest(name, known);
    if (name == other.name_member) near = shape.name_member;
    const bool foreign = has(words(other.members), name);
    return fail(ErrorCode::invalid_argument,
                name + " is not a member of " + std::string(shape.operation) +
                    (!near.empty() ? "; did you mean " + near + "?"
                     : foreign     ? ""
                                   : "; known are " + join(known, ", ")) +
                    (foreign ? " (" + std::string(other.command) + " sends " + std::string(other.operation) +
                                   ", which has it)"
                             : ""));
  }
  return {};
}

class Preparer {
 public:
  Preparer(const std::string& file, const RequestDefaults& defaults)
      : folder_(fs::absolute(file).parent_path()), defaults_(defaults) {}

  Result<void> training(PreparedRequest& out) {
    auto& request = out.request;
    MUSTER_CHECK(check_hyperparameters(request));
    values_to_text(request, "HyperParameters");
    values_to_text(request, "Environment");
    set_default(object_at(request, "AlgorithmSpecification"), "TrainingInputMode", "File");
    set_default(object_at(request, "AlgorithmSpecification"), "TrainingImage", "muster/train");
    auto& resources = object_at(request, "ResourceConfig");
    set_default(resources, "InstanceType", "ml.m5.large");
    set_default(resources, "InstanceCount", 1);
    set_default(resources, "VolumeSizeInGB", 1);
    set_default(object_at(request, "OutputDataConfig"), "S3OutputPath",
                "s3://" + defaults_.bucket + "/output");
    set_default(object_at(request, "StoppingCondition"), "MaxRuntimeInSeconds", 86'400);
    auto* channels = request.if_contains("InputDataConfig");
    if (channels == nullptr || !channels->is_array()) return {};
    for (auto& channel : channels->get_array()) {
      if (!channel.is_object()) continue;
      const auto name = json::opt_string(channel.get_object(), "ChannelName").value_or("channel");
      auto& source = object_at(object_at(channel.get_object(), "DataSource"), "S3DataSource");
      set_default(source, "S3DataType", "S3Prefix");
      set_default(source, "S3DataDistributionType", "FullyReplicated");
      MUSTER_CHECK(replace_path(source, "InputDataConfig " + name, upload_prefix(out.job_name, name), out));
    }
    return {};
  }

  Result<void> processing(PreparedRequest& out) {
    auto& request = out.request;
    values_to_text(request, "Environment");
    set_default(object_at(request, "AppSpecification"), "ImageUri", "muster/data");
    auto& cluster = object_at(object_at(request, "ProcessingResources"), "ClusterConfig");
    set_default(cluster, "InstanceType", "ml.m5.large");
    set_default(cluster, "InstanceCount", 1);
    set_default(cluster, "VolumeSizeInGB", 1);
    auto* inputs = request.if_contains("ProcessingInputs");
    if (inputs == nullptr || !inputs->is_array()) return {};
    for (auto& input : inputs->get_array()) {
      if (!input.is_object()) continue;
      const auto name = json::opt_string(input.get_object(), "InputName").value_or("input");
      auto& source = object_at(input.get_object(), "S3Input");
      set_default(source, "S3DataType", "S3Prefix");
      set_default(source, "S3InputMode", "File");
      set_default(source, "LocalPath", "/opt/ml/processing/input/" + name);
      MUSTER_CHECK(replace_path(source, "ProcessingInputs " + name, upload_prefix(out.job_name, name), out));
    }
    return {};
  }

 private:
  // An S3Uri that names something on this machine becomes an upload.
  Result<void> replace_path(json::Object& source, const std::string& what, const std::string& prefix,
                            PreparedRequest& out) {
    const auto uri = json::opt_string(source, "S3Uri").value_or("");
    if (is_s3_uri(uri)) return {};
    if (uri.empty())
      return fail(ErrorCode::invalid_argument,
                  what + ": S3Uri is missing; give s3://BUCKET/PREFIX or a path");
    const auto path = (folder_ / uri).lexically_normal();
    if (!fs::exists(path)) {
      return fail(ErrorCode::invalid_argument,
                  what + ": S3Uri is \"" + uri +
                      "\", which is neither s3://BUCKET/PREFIX nor a path that exists (" + path.string() +
                      ")");
    }
    const auto target = "s3://" + defaults_.bucket + "/" + prefix;
    out.uploads.push_back({path.string(), target});
    source["S3Uri"] = target;
    return {};
  }

  fs::path folder_;
  const RequestDefaults& defaults_;
};

}  // namespace

std::string upload_prefix(const std::string& job_name, const std::string& input) {
  return job_name + "/input/" + input;
}

std::vector<std::string> request_members(RequestKind kind) { return words(shape_of(kind).members); }

Result<PreparedRequest> prepare_request(const std::string& toml_file, RequestKind kind,
                                        const RequestDefaults& defaults) {
  PreparedRequest out;
  MUSTER_TRY(out.request, read_toml(toml_file));
  if (auto known = check_members(out.request, kind); !known)
    return tl::unexpected(known.error().with_context(toml_file));
  set_default(out.request, shape_of(kind).name_member, stem_name(toml_file) + "-" + defaults.name_suffix);
  MUSTER_TRY(out.job_name, json::get_string(out.request, shape_of(kind).name_member));
  set_default(out.request, "RoleArn", "arn:aws:iam::" + defaults.account + ":role/muster");
  Preparer preparer(toml_file, defaults);
  auto prepared = kind == RequestKind::training ? preparer.training(out) : preparer.processing(out);
  if (!prepared) return tl::unexpected(prepared.error().with_context(toml_file));
  out.needs_bucket = json::dump(out.request).find("\"s3://" + defaults.bucket) != std::string::npos;
  return out;
}

}  // namespace muster::cli
