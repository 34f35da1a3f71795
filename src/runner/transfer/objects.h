// What the runner asks of an object store. Adapter: objects_s3 over data/s3; tests use a map.
//
// Implementations are thread-safe. Errors: not_found (bucket or key), permission_denied, unavailable and
// timeout (away: the caller repeats), io (the local disk refused), cancelled (stop was requested), corrupt.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "runner/launch/paths.h"

namespace muster::runner {

struct ObjectInfo {
  std::string key;
  std::uint64_t bytes = 0;
  Time modified;
};

class Objects {
 public:
  virtual ~Objects() = default;
  // Every object whose key begins with prefix.key.
  virtual Result<std::vector<ObjectInfo>> list(const S3Location& prefix) = 0;
  // The whole object as a new file at `path`, or no file.
  virtual Result<void> download(const S3Location& object, const std::string& path, std::stop_token stop) = 0;
  virtual Result<void> upload(const std::string& path, const S3Location& object, std::stop_token stop) = 0;
  virtual Result<void> remove(const S3Location& object) = 0;  // absent: success
};

}  // namespace muster::runner
