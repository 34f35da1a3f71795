// The data directory of one service: what lies where in it, and the few small files that musterd and muster
// share. docs/formats/data-directory.md.
//
//   FORMAT        the number of this layout
//   lock          held by the musterd that serves it
//   created       empty; there since a first start was complete
//   endpoint      http://ADDRESS:PORT, chosen at first start and kept
//   musterd.pid   of the musterd that serves it, or that did last
//   region        the region that the musterd which serves it, or did last, was configured with
//   muster.toml   configuration, optional
//   keys/         master (32 random bytes), root.json (the first access key), both 0600
//   state/ objects/ logs/ run/   of the store, the object store, the log store, the engine
//   musterd.log   rotated
//
// Functions are thread-safe; only one process serves a directory (lock).
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace muster::data {

class DataDirectory {
 public:
  // $MUSTER_DATA, else $XDG_DATA_HOME/muster, else $HOME/.local/share/muster.
  static std::string default_path();
  // Makes it (0700) if it is not there, takes it (0700) if it is empty, and checks FORMAT. A folder of
  // something else, one that others may write to and keys/ that others may read are refused. The path becomes
  // absolute.
  static Result<DataDirectory> open_or_create(const std::string& path);
  // not_found, with the remedy, when no musterd ever ran there; permission_denied when it is another user's.
  static Result<DataDirectory> open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string keys() const { return path_ + "/keys"; }
  std::string master_key() const { return path_ + "/keys/master"; }
  std::string state() const { return path_ + "/state"; }
  std::string objects() const { return path_ + "/objects"; }
  std::string logs() const { return path_ + "/logs"; }
  std::string run() const { return path_ + "/run"; }
  std::string log_file() const { return path_ + "/musterd.log"; }
  std::string configuration() const { return path_ + "/muster.toml"; }

  // failed_precondition names the process that holds it.
  Result<FileLock> lock() const;

  // What a start writes each time (endpoint, region, pid) needs no room when it is as it was: musterd starts
  // on a full disk too.

  // nullopt before the first start.
  std::optional<std::string> endpoint() const;
  Result<void> write_endpoint(const std::string& url) const;

  // nullopt before the first start.
  std::optional<std::string> region() const;
  Result<void> write_region(const std::string& region) const;

  std::optional<int> pid() const;
  Result<void> write_pid(int pid) const;

  // Marks the first start as complete. From then on check_complete() finds what is lost: keys and databases
  // that are missing or empty, which a start would make anew, without what was in them.
  Result<void> write_created() const;
  Result<void> check_complete() const;  // corrupt, with the names and the remedy

  struct RootKey {
    std::string access_key;
    std::string secret_key;
  };
  Result<RootKey> root_key() const;  // not_found before the first start
  Result<void> write_root_key(const RootKey& key) const;

 private:
  explicit DataDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace muster::data
