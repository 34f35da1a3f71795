#include "bench/support/server.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "cli/session.h"

namespace muster::bench {
namespace {

constexpr auto kStartMax = std::chrono::seconds(20);

Result<std::string> make_folder() {
  const char* root = std::getenv("TMPDIR");
  std::string path = std::string(root != nullptr ? root : "/tmp") + "/muster-bench-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return fail_errno("cannot make " + path);
  return path;
}

}  // namespace

std::string program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string() + "/" + name;
}

Result<Server> Server::start(int nodes) {
  MUSTER_TRY(auto folder, make_folder());
  const auto data = folder + "/data";
  MUSTER_TRY(auto child,
             Child::start({program("musterd"), "--data", data, "--nodes", std::to_string(nodes)}));
  Server server(std::move(folder), std::move(child));
  const auto until = std::chrono::steady_clock::now() + kStartMax;
  for (;;) {
    const auto directory = data::DataDirectory::open(data);
    if (directory && directory->root_key()) {
      MUSTER_TRY(server.endpoint_, cli::endpoint_of(*directory));
      MUSTER_TRY(auto client, cli::Client::create(server.endpoint_));
      if (client.answers()) break;
    }
    if (std::chrono::steady_clock::now() > until)
      return fail(ErrorCode::timeout, "musterd did not start within 20 s: see " + data + "/musterd.log");
    std::this_thread::sleep_for(Millis(20));
  }
  MUSTER_TRY(const auto s3, server.s3());
  MUSTER_CHECK(s3->create_bucket(kBucket));
  return server;
}

Result<std::unique_ptr<data::s3::Client>> Server::s3() const {
  data::s3::ClientOptions options;
  options.endpoint = endpoint_.url;
  options.credentials = data::s3::static_credentials(endpoint_.credentials);
  return data::s3::Client::create(std::move(options));
}

Server::~Server() {
  if (folder_.empty()) return;  // moved from
  if (auto down = Child::start({program("muster"), "down", "--now", "--data", folder_ + "/data"}))
    down->wait();
  child_.wait();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace muster::bench
