// The runner protocol's server side: reports, commands, logs and credentials of one launch.
// docs/formats/runner-protocol.md. Authorised by the launch's own token, never by SigV4.
//
// Threading: any. Reports and credentials wait for the control thread; commands are long polls and hold no
// thread. Logs do not wait for the control thread: which stream a launch writes, and whether it is stale,
// stands in the last commit.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "api/auth/keyring.h"
#include "net/http.h"
#include "ports/log_store.h"
#include "service/service.h"

namespace muster::api {

class RunnerApi {
 public:
  RunnerApi(service::Service& service, ports::LogStore& logs, const Keyring& keyring, const Clock& clock);

  // For paths below /api/v1/runner/.
  std::variant<net::Route, net::Response> route(const net::RequestHead& head);

 private:
  net::Response report(const domain::LaunchId& launch, const std::string& body);
  void commands(const domain::LaunchId& launch, std::uint64_t after, net::Responder responder);
  net::Response append_logs(const domain::LaunchId& launch, const std::string& body);
  net::Response credentials(const domain::LaunchId& launch);

  service::Service& service_;
  ports::LogStore& logs_;
  const Keyring& keyring_;
  const Clock& clock_;
};

}  // namespace muster::api
