// Reading a tree of files that a job may change at any moment, with more rights than the job has.
//
// Nothing here follows a symbolic link out of the tree, so a job cannot make the runner read a file for it.
// Functions are stateless and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace muster::runner {

struct TreeEntry {
  enum class Kind { file, folder, link, other };
  std::string name;  // relative to the root, components joined by '/'
  Kind kind = Kind::file;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  unsigned mode = 0;   // permission bits
  std::string target;  // of a link
};

// The root of a tree. `path` itself may be no symbolic link; below /opt/ml none of its parents may be one.
class Tree {
 public:
  static Result<Tree> open(const std::string& path);
  // Everything below the root in order of names, folders before their content. At most kDepthMax levels;
  // what vanishes meanwhile is left out.
  Result<std::vector<TreeEntry>> list() const;
  // A regular file, read-only. Links are followed as long as they stay inside the tree.
  Result<UniqueFd> open_file(std::string_view name) const;
  const std::string& path() const { return path_; }

  static constexpr int kDepthMax = 128;

 private:
  Tree(std::string path, UniqueFd root) : path_(std::move(path)), root_(std::move(root)) {}
  Result<void> list_into(const UniqueFd& folder, const std::string& prefix, int depth,
                         std::vector<TreeEntry>& out) const;
  std::string path_;
  UniqueFd root_;
};

// The first `bytes_max` bytes of a regular file inside the tree; empty when there is none.
std::string read_small(const Tree& tree, std::string_view name, std::size_t bytes_max);

// A path by which another library may open the descriptor while it is open here.
std::string descriptor_path(const UniqueFd& file);

}  // namespace muster::runner
