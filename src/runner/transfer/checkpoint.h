// The checkpoint folder: restored at the start, copied to the store while the job runs and once more at the
// end.
//
// Simple form: a file goes up when it is settled (same size and time in two scans; no name that
// stays_behind()) and differs from what went up last. Three kinds, in this order, within a folder: other
// files; node-K.json, which says that node K's files are there; manifest.json. On several nodes the manifest
// waits until node-0.json .. node-(n-1).json are in the store and tell of the very files that it names, as
// checkpoints of muster-train have them (docs/formats/checkpoint-v1.md): one that an earlier save of this
// step left does not count. Deletions are not passed on. Links, sockets, pipes and devices stay behind; the
// log names each once.
//
// Threading: restore() before start; the rest from one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <stop_token>
#include <string>

#include "runner/transfer/objects.h"
#include "runner/transfer/stage.h"
#include "runner/transfer/tree.h"

namespace muster::runner {

struct CheckpointOptions {
  S3Location store;
  std::string folder;  // on this node
  int world = 1;
  int threads = 4;
  Millis peers_max{600'000};  // at the end: how long a manifest waits for the other nodes' files
  std::function<void(std::string)> log;
};

// By its name a file of this moment and this node, which is not copied: a component that ends in ".tmp", has
// ".tmp-" or ".muster-tmp-" inside, or is ".muster-lock", the lock of a run on its checkpoints.
bool stays_behind(std::string_view name);

class CheckpointSync {
 public:
  CheckpointSync(Objects& objects, CheckpointOptions options);

  // What is in the store, into the folder; those files count as copied.
  Result<Transferred> restore(std::stop_token stop);

  // Copies what is settled since the last scan. Errors are for the log: the next scan tries again.
  Result<Transferred> scan(std::stop_token stop);

  // Copies everything that is not in the store yet. The command has ended.
  Result<Transferred> finish(std::stop_token stop);

 private:
  struct Seen {
    std::uint64_t bytes = 0;
    std::int64_t modified_ns = 0;
    bool operator==(const Seen&) const = default;
  };
  Result<Transferred> pass(bool last, std::stop_token stop);
  Result<bool> peers_done(const Tree& tree, const std::string& manifest, bool last, std::stop_token stop);
  Result<int> missing_peer(const std::string& text, const S3Location& prefix, std::stop_token stop);
  void say_left_out(const TreeEntry& entry);
  Result<void> send(const Tree& tree, const std::string& name, std::stop_token stop);

  Objects& objects_;
  const CheckpointOptions options_;
  std::map<std::string, Seen> before_;  // of the last scan
  std::map<std::string, Seen> copied_;
  std::set<std::string> left_out_;  // names that the log has
};

}  // namespace muster::runner
