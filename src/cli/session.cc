#include "cli/session.h"

namespace muster::cli {

Result<Endpoint> endpoint_of(const data::DataDirectory& directory) {
  const auto url = directory.endpoint();
  const auto key = directory.root_key();
  if (!url || !key) {
    return fail(ErrorCode::not_found, "no service was started yet on " + directory.path() +
                                          "; start one with: muster up --detach --data " + directory.path());
  }
  return Endpoint{*url, "us-east-1", {key->access_key, key->secret_key, ""}};
}

Result<Session> open_session(const Common& common) {
  MUSTER_TRY(auto directory, data::DataDirectory::open(common.data));
  MUSTER_TRY(auto endpoint, endpoint_of(directory));
  data::s3::ClientOptions options;
  options.endpoint = endpoint.url;
  options.region = endpoint.region;
  options.credentials = data::s3::static_credentials(endpoint.credentials);
  options.retry.attempts_max = 4;
  MUSTER_TRY(auto s3, data::s3::Client::create(std::move(options)));
  MUSTER_TRY(auto client, Client::create(std::move(endpoint)));
  MUSTER_TRY(auto account, client.account());
  auto bucket = "sagemaker-" + client.endpoint().region + "-" + account;
  return Session{std::move(directory), std::move(client), std::move(account), std::move(bucket),
                 std::move(s3)};
}

Result<void> ensure_bucket(Session& session) { return session.s3->create_bucket(session.bucket); }

}  // namespace muster::cli
