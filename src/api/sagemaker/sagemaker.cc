#include "api/sagemaker/sagemaker.h"

#include <algorithm>

#include "api/sagemaker/detail.h"
#include "api/sagemaker/status.h"
#include "base/crypto.h"
#include "base/s3_uri.h"
#include "base/text.h"

namespace muster::api::sagemaker {
namespace detail {

std::string arn(const Caller& caller, domain::JobKind kind, std::string_view name) {
  const std::string_view resource = kind == domain::JobKind::training ? "training-job/" : "processing-job/";
  return "arn:aws:sagemaker:" + caller.region + ":" + caller.account + ":" + std::string(resource) +
         std::string(name);
}

tl::unexpected<ApiError> translate(const Error& error) {
  switch (error.code) {
    case ErrorCode::already_exists:
      return api::refuse(error, "ResourceInUse", 400);
    case ErrorCode::resource_exhausted:
      return api::refuse(error, "ResourceLimitExceeded", 400);
    case ErrorCode::invalid_argument:
    case ErrorCode::failed_precondition:
    case ErrorCode::not_found:
      return api::refuse(error, "ValidationException", 400);
    default:
      return api::refuse(error);
  }
}

tl::unexpected<ApiError> Problems::refuse() const {
  const auto count = found_.size();
  return api::refuse("ValidationException",
                     (count == 1 ? "" : std::to_string(count) + " problems: ") + join(found_, "; "));
}

void check_bucket(const Context& context, std::string_view member, std::string_view uri, Problems& problems) {
  const auto location = parse_s3_uri(uri);
  if (!location) {
    problems.add(std::string(member) + ": " + location.error().message);
  } else if (const auto& bucket = location->bucket;
             context.options.bucket_exists && !context.options.bucket_exists(bucket)) {
    problems.add(std::string(member) + " names bucket \"" + bucket +
                 "\", which does not exist; make it with aws s3 mb s3://" + bucket);
  }
}

std::string check_image(const Context& context, std::string_view member, const std::string& image,
                        Problems& problems) {
  auto program = resolve_image(context.options.images, image);
  if (!program) {
    problems.add(std::string(member) + ": " + program.error().message);
    return {};
  }
  return *program;
}

void check_instance_type(const Context& context, std::string_view member, const std::string& type,
                         Problems& problems) {
  const auto rule = look_up(context.options.instance_types, type);
  problems.add_if(rule != "local",
                  std::string(member) + " is " + type +
                      ", which [instance_types] in muster.toml does not allow here; ask for another type, or "
                      "write \"" +
                      type + "\" = \"local\" there and start musterd again");
}

std::string rehearsal_notice(std::string_view instance_type) {
  return instance_type.empty() ? "" : std::string(instance_type) + " is rehearsed on local nodes";
}

std::vector<std::string> string_list(const json::Object& object, std::string_view name) {
  const auto* list = json::opt_array(object, name);
  return list == nullptr ? std::vector<std::string>{} : json::string_list(*list);
}

std::map<std::string, std::string> string_map(const json::Object& object, std::string_view name) {
  const auto* map = json::opt_object(object, name);
  return map == nullptr ? std::map<std::string, std::string>{} : json::string_map(*map);
}

void add_operation(const std::shared_ptr<const Context>& context, std::string name, Operation operation,
                   JsonOperations& operations) {
  operations[name] = [context, name, operation](const json::Object& request,
                                                const Caller& caller) -> ApiResult<json::Object> {
    Problems problems(context->model->check_input("sagemaker", name, request));
    if (problems.empty()) check_characters(request, problems);
    if (!problems.empty()) return problems.refuse();
    return operation(*context, request, caller);
  };
}

ApiResult<json::Object> submit(const Context& context, control::SubmitJob command, const Caller& caller,
                               std::string_view arn_member) {
  json::Object answer;
  answer[arn_member] = arn(caller, command.kind, command.name);
  const auto reply = context.service.call(std::move(command));
  if (!reply) return translate(reply.error());
  if (reply->error) return translate(*reply->error);
  return answer;
}

ApiResult<json::Object> stop(const Context& context, domain::JobKind kind, const std::string& name) {
  const auto reply = context.service.call(control::StopJob{kind, name});
  if (!reply) return translate(reply.error());
  if (reply->error) return translate(*reply->error);
  return json::Object{};
}

namespace {

// Processing jobs share the tag rules: the tags of the request at creation.
ApiResult<json::Object> list_tags(const Context& context, const json::Object& request, const Caller&) {
  const auto resource = json::opt_string(request, "ResourceArn").value_or("");
  const auto parts = split(resource, ':');
  const auto last = parts.back();
  const auto slash = last.find('/');
  const auto type = last.substr(0, slash);
  if (parts.size() != 6 || slash == std::string_view::npos ||
      (type != "training-job" && type != "processing-job")) {
    return refuse("ValidationException",
                  "ResourceArn is \"" + resource + "\", it must name a training-job or a processing-job");
  }
  const auto kind = type == "training-job" ? domain::JobKind::training : domain::JobKind::processing;
  const auto job = context.service.job(kind, std::string(last.substr(slash + 1)));
  if (!job) return translate(job.error());
  MUSTER_TRY_API(const auto stored, json::parse_object(job->request));
  json::Object answer;
  const auto* tags = json::opt_array(stored, "Tags");
  answer["Tags"] = tags == nullptr ? json::Array{} : *tags;
  return answer;
}

}  // namespace
}  // namespace detail

JsonOperations operations(service::Service& service, std::shared_ptr<const Model> model, Options options) {
  const auto context =
      std::make_shared<const detail::Context>(detail::Context{service, std::move(model), std::move(options)});
  JsonOperations out;
  detail::add_training(context, out);
  detail::add_processing(context, out);
  detail::add_operation(context, "ListTags", detail::list_tags, out);
  return out;
}

}  // namespace muster::api::sagemaker
