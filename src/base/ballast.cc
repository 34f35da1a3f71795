#include "base/ballast.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

namespace muster {
namespace {

bool is_there(const struct ::stat& info, std::uint64_t bytes) {
  return static_cast<std::uint64_t>(info.st_blocks) * 512 >= bytes;
}

// How much room there is, and how much is needed: twice the ballast, so that it is not taken from the writes
// that need it.
std::optional<Shortage> look(const std::string& path, std::uint64_t bytes) {
  Shortage found{.folder = path.substr(0, path.rfind('/')), .needed = 2 * bytes};
  struct ::statvfs disk {};
  if (::statvfs(found.folder.c_str(), &disk) != 0) return std::nullopt;
  found.free = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  return found;
}

}  // namespace

std::string to_string(const Shortage& shortage) {
  return format_bytes(shortage.free) + " are free on the disk of " + shortage.folder + " and more than " +
         format_bytes(shortage.needed) + " are needed";
}

std::optional<Shortage> ballast_shortage(const std::string& path, std::uint64_t bytes) {
  struct ::stat info {};
  if (::stat(path.c_str(), &info) == 0 && is_there(info, bytes)) return std::nullopt;
  auto found = look(path, bytes);
  return found && found->free <= found->needed ? found : std::nullopt;
}

std::optional<Shortage> Ballast::shortage() const {
  if (held()) return std::nullopt;
  auto found = look(path_, bytes_);
  return found ? found : Shortage{.folder = path_.substr(0, path_.rfind('/')), .needed = 2 * bytes_};
}

void Ballast::restore() {
  if (held()) return;
  const auto disk = look(path_, bytes_);
  if (!disk) return;
  auto file = open_file(path_, O_RDWR | O_CREAT, 0600);
  if (!file) return;
  struct ::stat info {};
  const bool there = ::fstat(file->get(), &info) == 0 && is_there(info, bytes_);
  held_ = there ||
          (disk->free > disk->needed && ::posix_fallocate(file->get(), 0, static_cast<off_t>(bytes_)) == 0);
  if (!held_) ::unlink(path_.c_str());
}

bool Ballast::release() {
  if (!held_) return false;
  held_ = false;
  return ::unlink(path_.c_str()) == 0;
}

void Ballast::release_if_scarce(std::uint64_t free_min) {
  if (const auto disk = look(path_, bytes_); disk && disk->free < free_min) release();
}

}  // namespace muster
