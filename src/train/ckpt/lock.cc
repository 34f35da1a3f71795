#include "train/ckpt/lock.h"

#include <unistd.h>

#include <thread>

#include "base/text.h"

namespace muster::train {
namespace {

constexpr Millis kLockPause{50};
constexpr std::uint64_t kHolderBytesMax = 1024;

// For whoever finds the folder taken. A full disk may keep it from being written, which does no harm.
void write_holder(const FileLock& lock) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const std::string text = "process " + std::to_string(getpid()) + " on " + host + "\n";
  if (ftruncate(lock.fd(), 0) == 0) static_cast<void>(write_all(lock.fd(), text));
}

std::string holder(const std::string& path) {
  const auto text = read_regular_file(path, kHolderBytesMax);
  return text && !trim(*text).empty() ? std::string(trim(*text)) : "another process";
}

}  // namespace

Result<std::optional<FileLock>> lock_checkpoints(const std::string& folder, Millis patience,
                                                 const std::function<void(const std::string&)>& waits) {
  const std::string path = folder + "/" + kLockName;
  const Millis end = boot_time() + patience;
  for (bool told = false;; told = true) {
    auto lock = FileLock::acquire(path);
    if (lock) {
      write_holder(*lock);
      return std::optional(std::move(*lock));
    }
    if (lock.error().code == ErrorCode::unsupported) return std::optional<FileLock>();
    if (lock.error().code != ErrorCode::failed_precondition) return tl::unexpected(lock.error());
    const std::string by = holder(path);
    if (boot_time() >= end) return fail(ErrorCode::failed_precondition, folder + " is in use by " + by);
    if (!told && waits) waits(by);
    std::this_thread::sleep_for(kLockPause);
  }
}

}  // namespace muster::train
