#include "base/json.h"
#include "net/http.h"
#include "runner/report/link.h"

namespace muster::runner {
namespace {

constexpr Millis kPollTimeout{40'000};  // the long poll is answered within 25 s
constexpr Millis kTimeout{30'000};

class HttpLink final : public ControlLink {
 public:
  HttpLink(const net::Url& url, const domain::LaunchId& launch, const std::string& token)
      : client_(net::Client::create(url.host, url.port, 4)),
        base_(url.path + "/api/v1/runner/" + domain::to_string(launch) + "/"),
        authorization_("Bearer " + token) {}

  Result<domain::ReportAnswer> report(const domain::RankReport& report) override {
    MUSTER_TRY(const auto body, exchange("POST", "reports", wire::encode(report), kTimeout));
    MUSTER_TRY(const auto object, json::parse_object(body));
    MUSTER_TRY(const auto answer, json::get_string(object, "answer"));
    if (answer == "applied") return domain::ReportAnswer::applied;
    if (answer == "duplicate") return domain::ReportAnswer::duplicate;
    if (answer == "gap") return domain::ReportAnswer::gap;
    return fail(ErrorCode::invalid_argument, "unknown answer to a report: \"" + answer + "\"");
  }

  Result<domain::Desired> desired(std::uint64_t after) override {
    MUSTER_TRY(const auto body, exchange("GET", "commands?after=" + std::to_string(after), "", kPollTimeout));
    return wire::decode_desired(body);
  }

  Result<std::uint64_t> logs(const wire::LogBatch& batch) override {
    MUSTER_TRY(const auto body, exchange("POST", "logs", wire::encode(batch), kTimeout));
    MUSTER_TRY(const auto object, json::parse_object(body));
    MUSTER_TRY(const auto next, json::get_int(object, "next_sequence"));
    if (next < 0) return fail(ErrorCode::invalid_argument, "next_sequence is negative");
    return static_cast<std::uint64_t>(next);
  }

  Result<std::string> credentials() override { return exchange("GET", "credentials", "", kTimeout); }

  void cancel() override { client_->cancel(); }

 private:
  Result<std::string> exchange(const char* method, const std::string& action, std::string body,
                               Millis timeout) {
    net::ClientRequest request;
    request.method = method;
    request.target = base_ + action;
    request.headers.set("Authorization", authorization_);
    if (!body.empty()) request.headers.set("Content-Type", "application/json");
    request.body = std::move(body);
    request.timeout = timeout;
    auto sent = client_->send(request);
    if (!sent) {
      // Only 410 is "cancelled" to the callers; a cancelled client is on its way out.
      const auto code =
          sent.error().code == ErrorCode::cancelled ? ErrorCode::unavailable : sent.error().code;
      return fail(code, sent.error().message);
    }
    if (sent->status / 100 == 2) return std::move(sent->body);
    auto message = std::to_string(sent->status) + " " + sent->body.substr(0, 300);
    switch (sent->status) {
      case 410:
        return fail(ErrorCode::cancelled, std::move(message));
      case 408:
      case 429:
      case 502:
      case 503:
      case 504:
        return fail(ErrorCode::unavailable, std::move(message));
      case 500:
        return fail(ErrorCode::internal, std::move(message));
      default:
        return fail(ErrorCode::invalid_argument, std::move(message));
    }
  }

  std::unique_ptr<net::Client> client_;
  const std::string base_;
  const std::string authorization_;
};

}  // namespace

Result<std::unique_ptr<ControlLink>> connect(const std::string& endpoint_url, const domain::LaunchId& launch,
                                             const std::string& token) {
  MUSTER_TRY(auto url, net::parse_url(endpoint_url));
  if (url.scheme != "http") {
    return fail(ErrorCode::unsupported, "the endpoint " + endpoint_url + " is not http");
  }
  while (!url.path.empty() && url.path.back() == '/') url.path.pop_back();
  return std::make_unique<HttpLink>(url, launch, token);
}

}  // namespace muster::runner
