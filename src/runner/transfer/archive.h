// tar archives, plain or gzip-compressed, by libarchive. docs/adr/0009-archives-and-runner-transfers.md.
//
// GNU tar form: names are bytes, of any length. Owners are left out, permissions and times kept, symbolic
// links stored as links. Memory use does not depend on the size of the files. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>

#include "base/error.h"
#include "runner/transfer/tree.h"

namespace muster::runner {

class ArchiveWriter {
 public:
  // A new file at `path`.
  static Result<ArchiveWriter> create(const std::string& path, bool gzip);
  ArchiveWriter(ArchiveWriter&&) noexcept;
  ArchiveWriter& operator=(ArchiveWriter&&) noexcept;
  ~ArchiveWriter();

  // Called with names that are left out, and why: "is already there", "is a socket or device".
  using Skipped = std::function<void(const std::string& name, const std::string& why)>;

  // All of a tree. A name that the archive already holds is skipped, but for folders.
  Result<void> add_tree(const Tree& tree, std::stop_token stop, const Skipped& skipped);
  // All entries of the plain tar file at `path`.
  Result<void> add_archive(const std::string& path, std::stop_token stop, const Skipped& skipped);
  // Completes the file; nothing is valid before.
  Result<void> finish();

  std::uint64_t files() const { return files_; }
  std::uint64_t bytes() const { return bytes_; }  // of content

 private:
  struct Impl;
  explicit ArchiveWriter(std::unique_ptr<Impl> impl);
  Result<void> add_file(const Tree& tree, const TreeEntry& entry, std::stop_token stop);
  std::unique_ptr<Impl> impl_;
  std::set<std::string> names_;  // all but folders
  std::set<std::string> folders_;
  std::uint64_t files_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace muster::runner
