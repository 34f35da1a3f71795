#include "cli/session.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace muster::cli {

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? text : shell_quoted(text);
}

std::string command_of(const std::string& data, const std::string& program) {
  const auto absolute = [](const std::string& path) {
    return std::filesystem::absolute(path).lexically_normal().string();
  };
  const auto path = absolute(data);
  const auto command = shell_word(program);
  if (path == absolute(data::DataDirectory::default_path())) return command;
  return command + " --data " + shell_word(path);
}

Result<Endpoint> endpoint_of(const data::DataDirectory& directory) {
  const auto url = directory.endpoint();
  const auto key = directory.root_key();
  const auto region = directory.region();
  if (!url || !key || !region) {
    return fail(ErrorCode::not_found, "no service was started yet on " + directory.path() +
                                          "; start one with: " + command_of(directory.path()) +
                                          " up --detach");
  }
  return Endpoint{.url = *url,
                  .region = *region,
                  .credentials = {key->access_key, key->secret_key, ""},
                  .command = command_of(directory.path())};
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
