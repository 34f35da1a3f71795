// An object store in memory for tests, with faults. Thread-safe.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/file.h"
#include "runner/transfer/objects.h"

namespace muster::runner {

class FakeObjects final : public Objects {
 public:
  Result<std::vector<ObjectInfo>> list(const S3Location& prefix) override {
    const std::lock_guard lock(mutex);
    if (auto failed = fault()) return tl::unexpected(*failed);
    if (prefix.bucket != "b") return fail(ErrorCode::not_found, "no bucket " + prefix.bucket);
    std::vector<ObjectInfo> out;
    for (const auto& [key, content] : objects) {
      if (key.substr(0, prefix.key.size()) == prefix.key)
        out.push_back({key, content.size(), modified[key], ""});
    }
    return out;
  }
  Result<void> download(const std::string&, const std::vector<Download>& downloads, const std::string& root,
                        std::stop_token) override {
    for (const auto& download : downloads) {
      std::string content;
      {
        const std::lock_guard lock(mutex);
        if (auto failed = fault()) return tl::unexpected(*failed);
        const auto found = objects.find(download.object.key);
        if (found == objects.end()) return fail(ErrorCode::not_found, "no key " + download.object.key);
        content = found->second;
      }
      const auto path = root + "/" + download.path;
      MUSTER_CHECK(make_directories(path.substr(0, path.rfind('/'))));
      MUSTER_CHECK(write_file_atomic(path, content));
    }
    return {};
  }
  Result<void> upload(const std::string& path, const S3Location& object, std::stop_token) override {
    MUSTER_TRY(auto content, read_file(path));
    std::unique_lock lock(mutex);
    arrived.notify_all();
    arrived.wait(lock, [&] { return object.key != slow; });
    if (auto failed = fault()) return tl::unexpected(*failed);
    if (object.bucket != "b") return fail(ErrorCode::not_found, "no bucket " + object.bucket);
    if (object.key == refused) return fail(ErrorCode::permission_denied, refused + " is refused");
    objects[object.key] = std::move(content);
    modified[object.key] = Time{++clock};
    order.push_back(object.key);
    return {};
  }
  Result<void> remove(const S3Location& object) override {
    const std::lock_guard lock(mutex);
    if (auto failed = fault()) return tl::unexpected(*failed);
    objects.erase(object.key);
    return {};
  }

  std::mutex mutex;
  std::map<std::string, std::string> objects;  // of bucket "b"
  std::map<std::string, Time> modified;
  std::vector<std::string> order;  // of uploads
  std::int64_t clock = 1000;
  int away = 0;                     // this many calls fail as unavailable
  std::optional<Error> broken;      // every call fails so
  std::string refused;              // a key that cannot be uploaded
  std::string slow;                 // an upload of this key ends only when this is another
  std::condition_variable arrived;  // notify when `slow` changes

 private:
  std::optional<Error> fault() {
    if (broken) return broken;
    if (away-- > 0) return Error{ErrorCode::unavailable, "connection refused"};
    return std::nullopt;
  }
};

}  // namespace muster::runner
