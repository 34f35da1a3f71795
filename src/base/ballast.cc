#include "base/ballast.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"

namespace muster {

void Ballast::restore() {
  if (held()) return;
  struct ::statvfs disk {};
  if (::statvfs(path_.substr(0, path_.rfind('/')).c_str(), &disk) != 0) return;
  const auto free = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  auto file = open_file(path_, O_RDWR | O_CREAT, 0600);
  if (!file) return;
  struct ::stat info {};
  const bool there =
      ::fstat(file->get(), &info) == 0 && static_cast<std::uint64_t>(info.st_blocks) * 512 >= bytes_;
  held_ = there || (free > 2 * bytes_ && ::posix_fallocate(file->get(), 0, static_cast<off_t>(bytes_)) == 0);
  if (!held_) ::unlink(path_.c_str());
}

bool Ballast::release() {
  if (!held_) return false;
  held_ = false;
  return ::unlink(path_.c_str()) == 0;
}

}  // namespace muster
