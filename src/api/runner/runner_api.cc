#include "api/runner/runner_api.h"

#include "api/query/query.h"
#include "base/json.h"
#include "base/text.h"
#include "wire/runner/messages.h"

namespace muster::api {
namespace {

constexpr Millis kPollMax{25'000};
constexpr std::chrono::hours kSessionLife{1};
constexpr std::uint64_t kLogBatchMax = 8ULL << 20;
constexpr std::string_view kPrefix = "/api/v1/runner/";
constexpr std::string_view kBearer = "Bearer ";

net::Response reply(int status, std::string body) {
  net::Response response;
  response.status = status;
  response.headers.set("Content-Type", "application/json");
  response.body = std::move(body);
  return response;
}

net::Response refusal(int status, std::string_view message) {
  json::Object body;
  body["message"] = message;
  return reply(status, json::dump(body));
}

net::Response stale(const domain::LaunchId& launch) {
  return refusal(410, "launch " + to_string(launch) + " is over: kill its processes and exit");
}

net::Response refusal(const Error& error) {
  switch (error.code) {
    case ErrorCode::invalid_argument:
      return refusal(400, error.message);
    case ErrorCode::failed_precondition:
      return refusal(409, error.message);
    case ErrorCode::not_found:
      return refusal(410, error.message);
    case ErrorCode::resource_exhausted:
    case ErrorCode::unavailable:
    case ErrorCode::timeout:
      return refusal(503, error.message);
    default:
      return refusal(500, error.message);
  }
}

}  // namespace

RunnerApi::RunnerApi(service::Service& service, ports::LogStore& logs, const Keyring& keyring,
                     const Clock& clock)
    : service_(service), logs_(logs), keyring_(keyring), clock_(clock) {}

std::variant<net::Route, net::Response> RunnerApi::route(const net::RequestHead& head) {
  const auto rest = std::string_view(head.path).substr(kPrefix.size());
  const auto slash = rest.find('/');
  const auto launch = domain::parse_launch_id(rest.substr(0, slash));
  const auto action = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  const auto header = head.headers.get("Authorization");
  const auto token =
      header.substr(0, kBearer.size()) == kBearer ? header.substr(kBearer.size()) : std::string_view();
  const auto owner = keyring_.open_runner_token(token);
  if (!launch || !owner || *owner != *launch)
    return refusal(401, "the runner token is not good for this launch");

  net::Route route;
  const auto id = *launch;
  if (head.method == "POST" && action == "reports") {
    route.body_max = 64 << 10;
    route.handle = [this, id](net::Request& request) { return report(id, request.body); };
  } else if (head.method == "POST" && action == "logs") {
    route.body_max = kLogBatchMax;
    route.handle = [this, id](net::Request& request) { return append_logs(id, request.body); };
  } else if (head.method == "GET" && action == "credentials") {
    route.handle = [this, id](net::Request&) { return credentials(id); };
  } else if (head.method == "GET" && action == "commands") {
    const auto form = query::parse_form(head.query);
    const auto it = form.find("after");
    const auto after = parse_int(it == form.end() ? "0" : it->second);
    if (!after || *after < 0) return refusal(400, "after must be a number from 0 on");
    route.handle_later = [this, id, version = static_cast<std::uint64_t>(*after)](
                             net::Request, net::Responder done) { commands(id, version, std::move(done)); };
  } else {
    return refusal(404, "the runner protocol has POST reports, POST logs, GET commands and GET credentials");
  }
  return route;
}

net::Response RunnerApi::report(const domain::LaunchId& launch, const std::string& body) {
  const auto decoded = wire::decode_report(body);
  if (!decoded) return refusal(decoded.error());
  if (decoded->launch != launch) return refusal(400, "the report is of another launch");
  const auto done = service_.call(control::Report{*decoded});
  if (!done) return refusal(done.error());
  if (done->error) return refusal(*done->error);
  switch (done->answer) {
    case domain::ReportAnswer::applied:
      return reply(200, R"({"answer":"applied"})");
    case domain::ReportAnswer::duplicate:
      return reply(200, R"({"answer":"duplicate"})");
    case domain::ReportAnswer::gap:
      return reply(200, R"({"answer":"gap"})");
    case domain::ReportAnswer::stale:
      break;
  }
  return stale(launch);
}

void RunnerApi::commands(const domain::LaunchId& launch, std::uint64_t after, net::Responder responder) {
  service_.watch(launch, after, kPollMax, [launch, responder = std::move(responder)](auto desired) {
    if (!desired) return responder(refusal(desired.error()));
    if (!*desired) return responder(stale(launch));
    responder(reply(200, wire::encode(**desired)));
  });
}

net::Response RunnerApi::append_logs(const domain::LaunchId& launch, const std::string& body) {
  auto batch = wire::decode_log_batch(body);
  if (!batch) return refusal(batch.error());
  const auto info = service_.live_launch(launch);
  if (!info) return stale(launch);
  std::vector<ports::LogLine> lines;
  lines.reserve(batch->lines.size());
  for (auto& line : batch->lines) lines.push_back({line.time, std::move(line.text)});
  // Known since the launch, but for a crash of the machine before the stream was durable.
  if (const auto made = logs_.create(info->log_group, info->log_stream, clock_.now()); !made)
    return refusal(made.error());
  const auto next =
      logs_.append(info->log_group, info->log_stream, batch->first_sequence, lines, clock_.now());
  if (!next) return refusal(next.error());
  json::Object answer;
  answer["next_sequence"] = *next;
  return reply(200, json::dump(answer));
}

net::Response RunnerApi::credentials(const domain::LaunchId& launch) {
  const auto info = service_.live_launch(launch);
  if (!info) return stale(launch);
  const auto job = service_.job(info->kind, info->job_name);
  if (!job) return refusal(job.error());
  const auto request = json::parse_object(job->request);
  if (!request) return refusal(request.error());
  const auto session = keyring_.make_session(launch, json::opt_string(*request, "RoleArn").value_or(""),
                                             clock_.now() + kSessionLife);
  json::Object answer;
  answer["AccessKeyId"] = session.credentials.access_key;
  answer["SecretAccessKey"] = session.credentials.secret_key;
  answer["Token"] = session.credentials.session_token;
  answer["Expiration"] = format_iso8601(session.expires);
  answer["RoleArn"] = session.role_arn;
  return reply(200, json::dump(answer));
}

}  // namespace muster::api
