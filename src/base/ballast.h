// Space held back on a disk, given up when it is full, so that what must still be written (ends of jobs,
// removals) can be. Belongs to one thread.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

class Ballast {
 public:
  // `path`: a file in an existing folder. bytes 0: none. Nothing is held before restore().
  Ballast(std::string path, std::uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {}

  bool held() const { return held_ || bytes_ == 0; }

  // Puts it back when there is room for it twice, so that it is not taken from the writes that need it.
  void restore();

  // True when that made room.
  bool release();

 private:
  std::string path_;
  std::uint64_t bytes_;
  bool held_ = false;
};

}  // namespace muster
