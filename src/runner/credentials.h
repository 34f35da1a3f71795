// The job's credentials: fetched from the control plane, kept until they are about to expire, and served to
// the job's SDKs on a loopback address of the node (AWS_CONTAINER_CREDENTIALS_FULL_URI).
//
// Threading: all functions may be called by several threads at once.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "net/http.h"
#include "runner/report/link.h"

namespace muster::runner {

struct SessionCredentials {
  std::string json;  // as the control plane gave it
  std::string access_key;
  std::string secret_key;
  std::string token;
  Time expires;
};

class CredentialsCache {
 public:
  CredentialsCache(ControlLink& link, const Clock& clock) : link_(link), clock_(clock) {}
  // Fetches when there are none or they expire within 10 minutes; while the control plane is away, what there
  // is as long as it is good. unavailable otherwise.
  Result<SessionCredentials> get();
  // The next get() fetches: the server has refused them.
  void forget();

 private:
  ControlLink& link_;
  const Clock& clock_;
  std::mutex mutex_;
  std::optional<SessionCredentials> kept_;
};

class CredentialsServer final : public net::Handler {
 public:
  // uri: "http://address:port/path", port 0 for any.
  static Result<std::unique_ptr<CredentialsServer>> start(const std::string& uri, CredentialsCache& cache);
  ~CredentialsServer() override;

  const std::string& uri() const { return uri_; }      // with the port
  const std::string& token() const { return token_; }  // value of the Authorization header

  std::variant<net::Route, net::Response> route(const net::RequestHead& head) override;

 private:
  CredentialsServer(CredentialsCache& cache, std::string path);
  CredentialsCache& cache_;
  const std::string path_;
  const std::string token_;
  std::string uri_;
  std::unique_ptr<net::Server> server_;
};

}  // namespace muster::runner
