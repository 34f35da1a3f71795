// The command line's view of one service: signed calls to its public API.
//
// One thread. Errors carry the service's own message: not_found, already_exists, resource_exhausted,
// unauthenticated, else failed_precondition for what it refused; or `unavailable`, with the remedy when
// nobody answers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "net/http.h"
#include "wire/sigv4/sigv4.h"

namespace muster::cli {

struct Endpoint {
  std::string url;                   // http://127.0.0.1:9650
  std::string region = "us-east-1";  // that the service was configured with
  wire::sigv4::Credentials credentials;
  std::string command = "muster";  // that reaches this service, for remedies
};

class Client {
 public:
  static Result<Client> create(Endpoint endpoint);

  // An operation of SageMaker ("CreateTrainingJob") or CloudWatch Logs ("GetLogEvents").
  Result<json::Object> sagemaker(std::string_view operation, const json::Object& request);
  Result<json::Object> logs(std::string_view operation, const json::Object& request);
  // Muster's own management calls, below /api/v1/.
  Result<json::Object> get(std::string_view path);
  Result<json::Object> post(std::string_view path, const json::Object& body);
  // The account that the service answers for.
  Result<std::string> account();
  // Whether the service of this endpoint is there. Signed: at the address there may be another one by now,
  // which does not know the key. Waits 2 s at most.
  bool answers();

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  Client(Endpoint endpoint, net::Url url);
  Result<net::ClientResponse> send(std::string_view service, std::string method, std::string path,
                                   net::Headers headers, std::string body,
                                   std::optional<Millis> timeout = std::nullopt);
  Result<json::Object> call(std::string_view service, std::string_view target, const json::Object& request);
  Result<json::Object> read(const Result<net::ClientResponse>& response) const;

  Endpoint endpoint_;
  net::Url url_;
  std::unique_ptr<net::Client> http_;
};

}  // namespace muster::cli
