// Space held back on a disk, given up when it is full, so that what must still be written (ends of jobs,
// removals) can be. Belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

struct Shortage {
  std::string folder;        // on the disk that is full
  std::uint64_t free = 0;    // bytes
  std::uint64_t needed = 0;  // bytes that must be free before the ballast is put back
  bool operator==(const Shortage&) const = default;
};
// "12.0 MiB are free on the disk of /data/state and more than 16.0 MiB are needed"
std::string to_string(const Shortage& shortage);
// For whoever does not hold the ballast himself: nullopt when it is there, or could be.
std::optional<Shortage> ballast_shortage(const std::string& path, std::uint64_t bytes);

class Ballast {
 public:
  // `path`: a file in an existing folder. bytes 0: none. Nothing is held before restore().
  Ballast(std::string path, std::uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {}

  bool held() const { return held_ || bytes_ == 0; }
  std::optional<Shortage> shortage() const;  // nullopt while it is held

  // Puts it back when there is room for it twice, so that it is not taken from the writes that need it.
  void restore();

  // True when that made room.
  bool release();
  // Only when less than `free_min` bytes are free without it.
  void release_if_scarce(std::uint64_t free_min);

 private:
  std::string path_;
  std::uint64_t bytes_;
  bool held_ = false;
};

}  // namespace muster
