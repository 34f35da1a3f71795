// One port for every service: which handler a request belongs to, and who sent it.
//
// The service is read from the credential scope of the signature, so a bucket may have any name. Unsigned are
// only GET and HEAD /healthz and presigned S3 URLs; the runner protocol has tokens of its own.
//
//   scope s3         api/s3      signature checked before the body, which streams
//   scope sagemaker  JSON 1.1    X-Amz-Target SageMaker.*
//   scope logs       JSON 1.1    X-Amz-Target Logs_20140328.*
//   scope sts, iam   Query
//   scope muster     /api/v1/*   management; refused to the credentials of jobs
//
// Thread-safe: requests come from several threads at once.
#pragma once

#include <string>

#include "api/auth/auth.h"
#include "api/manage/manage.h"
#include "api/runner/runner_api.h"
#include "api/s3/service.h"
#include "net/http.h"

namespace muster::api {

struct Services {
  JsonOperations sagemaker;
  JsonOperations logs;
  const s3::S3Service& s3;
  RunnerApi& runner;
  ManageApi& manage;
};

// Thread-safe. Everything it is given must outlive it.
class Router final : public net::Handler {
 public:
  Router(Authenticator& authenticator, Services services)
      : authenticator_(authenticator), services_(std::move(services)) {}
  std::variant<net::Route, net::Response> route(const net::RequestHead& head) override;

 private:
  std::variant<net::Route, net::Response> route_s3(const net::RequestHead& head, Signed signer);
  net::Response answer(const net::RequestHead& head, const Signed& signer, std::string_view body);

  Authenticator& authenticator_;
  const Services services_;
};

}  // namespace muster::api
