// Whole files and folders between a local file system and S3, over Client.
//
// Each call uses `parallel` threads of its own while it runs. Nothing of a key is trusted: a file is made
// only below its root, under a temporary name, and appears complete and verified or not at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/s3/client.h"

namespace muster::data::s3 {

struct Progress {
  std::uint64_t bytes = 0;
  std::uint64_t bytes_total = 0;
  std::uint64_t files = 0;
  std::uint64_t files_total = 0;
};

struct TransferOptions {
  int parallel = 8;
  std::uint64_t part_bytes =
      16ULL << 20;  // ranges of a download, parts of an upload; grows to keep 10,000 parts
  // Called by one thread at a time, at most every 100 ms, and at the end.
  std::function<void(const Progress&)> progress;
  // Looked at between pieces; set: the call ends with `cancelled`.
  const std::atomic<bool>* stop = nullptr;
};

struct Report {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  // What was left out, with the reason: a key that would leave the folder or is both file and folder; a local
  // file that is neither regular nor a link to one.
  std::vector<std::pair<std::string, Error>> refused;
};

// ---- down ----

struct Download {
  ObjectInfo object;
  std::string path;  // below the root, '/' between components; ending in '/': only the folder is made
};

// The objects of `downloads` into files below `root`, which is made if it is missing.
Result<Report> download_objects(Client& client, const std::string& bucket,
                                const std::vector<Download>& downloads, const std::string& root,
                                const TransferOptions& options = {});

// All objects whose key begins with `prefix`; their path is the key without it. A prefix that does not end in
// '/' means the object of that key (under its last component) and those below "prefix/".
Result<Report> download_prefix(Client& client, const std::string& bucket, const std::string& prefix,
                               const std::string& root, const TransferOptions& options = {});

// One object to one file. A link at `path` is followed and the file behind it replaced, unlike those below
// the root of the calls above; a device, pipe or socket is invalid_argument.
Result<ObjectInfo> download_file(Client& client, const Place& place, const std::string& path,
                                 const TransferOptions& options = {});

// What is wrong with `path` as a place below a folder: invalid_argument for an empty, "." or ".." component,
// a leading '/', NUL, a component over 255 bytes.
Result<void> check_relative_path(std::string_view path);

// ---- up ----

// One PUT up to part_bytes, else a multipart upload that is aborted if it fails. Answers the ETag.
Result<std::string> upload_file(Client& client, const std::string& path, const Place& place,
                                const TransferOptions& options = {}, const PutOptions& put = {});

struct UploadOptions : TransferOptions {
  // Path below the folder -> take it? Unset: all but the temporary files of a download.
  std::function<bool(std::string_view)> wanted;
};
// Every regular file below `folder` (links to files are followed, links to folders are not), as `prefix` +
// path; a
// '/' is put between unless the prefix is empty or ends in one.
Result<Report> upload_tree(Client& client, const std::string& folder, const std::string& bucket,
                           const std::string& prefix, const UploadOptions& options = {});

}  // namespace muster::data::s3
