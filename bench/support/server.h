// A musterd for one measurement: the program beside the benchmark, on a data directory below $TMPDIR, which
// must lie on the disk that is to be measured. Used by one thread, but for endpoint().
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "bench/support/child.h"
#include "cli/client.h"
#include "data/s3/client.h"

namespace muster::bench {

class Server {
 public:
  static Result<Server> start(int nodes);
  Server(Server&&) = default;
  ~Server();  // ends it and its jobs, and deletes the folder

  static constexpr const char* kBucket = "bench";        // is there
  const std::string& folder() const { return folder_; }  // scratch space on the same file system
  const cli::Endpoint& endpoint() const { return endpoint_; }
  Result<std::unique_ptr<data::s3::Client>> s3() const;

 private:
  Server(std::string folder, Child child) : folder_(std::move(folder)), child_(std::move(child)) {}
  std::string folder_;
  Child child_;
  cli::Endpoint endpoint_;
};

// "/…/bin/NAME", beside the running program.
std::string program(const std::string& name);

}  // namespace muster::bench
