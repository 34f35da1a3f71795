// Files made below one folder and nowhere else, whatever their paths say: openat2(RESOLVE_BENEATH) where the
// kernel has it, a walk that follows no link where not. A file has a temporary name until it is complete.
// Threading: a Folder is for any number of threads at once, a NewFile for one but for write_at, which may run
// on several.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace muster::data::s3::detail {

inline constexpr std::string_view kTemporaryPrefix = ".muster-tmp-";

// Gone with its destructor unless committed.
class NewFile {
 public:
  NewFile(UniqueFd folder, UniqueFd file, std::string temporary, std::string name)
      : folder_(std::move(folder)),
        file_(std::move(file)),
        temporary_(std::move(temporary)),
        name_(std::move(name)) {}
  NewFile(NewFile&& other) noexcept
      : folder_(std::move(other.folder_)),
        file_(std::move(other.file_)),
        temporary_(std::exchange(other.temporary_, {})),
        name_(std::move(other.name_)) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  int fd() const { return file_.get(); }
  // Room for `size` bytes, so that a full disk is met at once; a file system without fallocate is fine.
  Result<void> reserve(std::uint64_t size);
  Result<void> write_at(std::string_view data, std::uint64_t offset);
  Result<void> truncate(std::uint64_t size);
  // The file appears under its name, in place of what was there.
  Result<void> commit();

 private:
  UniqueFd folder_;
  UniqueFd file_;
  std::string temporary_;
  std::string name_;
};

// invalid_argument if what is there, of `mode`, is a device, pipe or socket: a rename would silently remove
// it. A link passes: the rename replaces the link, never what it leads to.
Result<void> check_replaceable(mode_t mode, const std::string& shown);

class Folder {
 public:
  // Made, with its parents, if missing.
  static Result<Folder> open(const std::string& root);
  // `path`: checked by check_relative_path. Folders on the way are made. already_exists when one of them is a
  // file; permission_denied when the way leaves the root through a link; invalid_argument as of
  // check_replaceable.
  Result<NewFile> create(const std::string& path) const;
  Result<void> make_folder(const std::string& path) const;

 private:
  explicit Folder(UniqueFd fd) : fd_(std::move(fd)) {}
  Result<UniqueFd> enter(const std::string& path) const;

  UniqueFd fd_;
};

}  // namespace muster::data::s3::detail
