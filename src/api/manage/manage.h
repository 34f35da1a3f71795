// Muster's own management calls, signed like the rest (service name "muster"), for the command line:
//   GET  /api/v1/service  version, account, what isolates jobs here and what does not
//   GET  /api/v1/nodes    the nodes and what each is doing
//   POST /api/v1/prune    {"older_than_seconds": N}: forgets jobs that ended longer ago, and their logs, at
//                         most 1,000 at once (the answer says how many are left), with "jobs": [{"kind",
//                         "name"}] only of these; aborts uploads in parts that got none for as long
//
// Thread-safe, as the Service and the functions that it is given must be.
#pragma once

#include <functional>
#include <string>

#include "api/api.h"
#include "domain/cluster.h"
#include "net/http.h"
#include "ports/object_store.h"
#include "service/service.h"

namespace muster::api {

struct ServiceFacts {
  std::string version;
  std::string data_directory;
  std::function<Result<domain::Inventory>()> inventory;
};

// Thread-safe; blocks on the service. What it is given must outlive it.
class ManageApi {
 public:
  ManageApi(service::Service& service, ports::ObjectStore& objects, ServiceFacts facts)
      : service_(service), objects_(objects), facts_(std::move(facts)) {}
  net::Response run(const net::RequestHead& head, std::string_view body, const Caller& caller);

 private:
  ApiResult<json::Object> service_facts(const Caller& caller);
  ApiResult<json::Object> nodes();
  ApiResult<json::Object> prune(std::string_view body, const Caller& caller);

  service::Service& service_;
  ports::ObjectStore& objects_;
  ServiceFacts facts_;
};

}  // namespace muster::api
