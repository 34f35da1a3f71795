// What every command starts from: which service is meant, and a client to it. One thread.
#pragma once

#include <memory>
#include <string>

#include "cli/client.h"
#include "data/directory/directory.h"
#include "data/s3/client.h"

namespace muster::cli {

// Options that every command takes.
struct Common {
  std::string data = data::DataDirectory::default_path();
  bool as_json = false;  // --output json
};

// "muster", with --data where the data directory is not the standard one: begins a command that is printed
// for the user to type.
std::string command_of(const std::string& data, const std::string& program = "muster");

// In single quotes, for a shell; or only where the text needs them.
std::string shell_quoted(const std::string& text);
std::string shell_word(const std::string& text);

struct Session {
  data::DataDirectory directory;
  Client client;
  std::string account;
  std::string bucket;  // for uploads and outputs: sagemaker-<region>-<account>, as the SDKs name theirs
  std::unique_ptr<data::s3::Client> s3;
};

// not_found without a service there, unavailable when it does not answer.
Result<Endpoint> endpoint_of(const data::DataDirectory& directory);
Result<Session> open_session(const Common& common);

// Makes the session's bucket if it is not there.
Result<void> ensure_bucket(Session& session);

}  // namespace muster::cli
