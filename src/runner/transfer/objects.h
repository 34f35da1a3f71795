// What the runner asks of an object store. Adapter: objects_s3 over data/s3; tests use a map.
//
// Implementations are thread-safe. Errors: not_found (bucket or key), permission_denied, unavailable and
// timeout (the store was away for longer than the adapter waits), io (the local disk refused), cancelled
// (stop was requested), corrupt.
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
  std::string etag;  // of this version
};

struct Download {
  ObjectInfo object;
  std::string path;  // below the root
};

class Objects {
 public:
  virtual ~Objects() = default;
  // Every object whose key begins with prefix.key.
  virtual Result<std::vector<ObjectInfo>> list(const S3Location& prefix) = 0;
  // Each object as a whole file below `root`; several at a time. After an error some files may be there, none
  // in part. not_found names the object; already_exists a key that is both a file and a folder.
  virtual Result<void> download(const std::string& bucket, const std::vector<Download>& downloads,
                                const std::string& root, std::stop_token stop) = 0;
  virtual Result<void> upload(const std::string& path, const S3Location& object, std::stop_token stop) = 0;
  virtual Result<void> remove(const S3Location& object) = 0;  // absent: success
  // Ends all calls, in flight and later. For shutting down.
  virtual void cancel() {}
};

}  // namespace muster::runner
