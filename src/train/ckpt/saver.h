// Saves checkpoints while the training goes on: one rank's part.
//
// start() copies the slices into a buffer that is kept from save to save and returns; a thread writes them.
// What is left needs all ranks: the manifests name every rank's checksums. A Comm is for one thread, so the
// calling thread does that part, where ranks talk anyway: each tells beside a step's loss, and in the pauses
// of a long step or an evaluation, whether its part is ready(), and when all are, all call advance(). A save
// passes three such points: files, node manifests, manifest; the last makes it count. Two more follow where
// older steps are removed: which of them stay, and that they are gone. The thread never talks to other ranks,
// so a rank that hangs or dies while saving shows where it always does, in the next collective.
//
// wait() does the same in a loop of short collectives, so a save may take as long as the disk needs without
// anyone waiting long in one operation. Only a thread that gets nothing written for `stall_limit` is an
// error.
//
// At most one save is in flight. After an error the saver is not used again; the step has no manifest then.
// What failed on all ranks alike, as on a full disk, leaves none of its files either.
// One thread a Saver, its rank's; all ranks make the same calls. See docs/adr/0042-saving-behind-the-step.md.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/time.h"
#include "train/ckpt/checkpoint.h"
#include "train/ckpt/room.h"
#include "train/comm/comm.h"

namespace muster::train {

struct SaverOptions {
  std::string folder;
  Writer writer;
  std::optional<Keep> keep = {};  // after each save, older ones but these are removed; nullopt: none is
  Millis stall_limit{600'000};
  std::string when_full = kWhenFull;  // what to do about a full disk, said with the error
};

// A save that counts, and what it cost.
struct SaveReport {
  std::int64_t step = 0;
  std::string path;
  double stall_s = 0;  // that the calling thread spent on it, without what it waited for a save before
  double seconds = 0;  // until it counted
};

class Saver {
 public:
  Saver(SaverOptions options, Comm& comm);
  ~Saver();  // waits for the thread; a save in flight is left without its manifest
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Makes room for saves of that many bytes and touches it, so that the first save stalls no longer than the
  // others. io: there is not so much memory.
  Result<void> reserve(std::uint64_t bytes);

  // Collective. The slices are free again on return. Precondition: no save in flight.
  Result<void> start(const CheckpointInfo& info, std::span<const TensorSlice> slices);

  // The same on all ranks.
  bool in_flight() const { return phase_ != Phase::idle; }
  // Whether this rank is done with its part of what is in flight. True if nothing is.
  bool ready() const;

  // Collective, when every rank is ready(): the next part. A report once the save counts. Errors name step,
  // rank and path, and are everybody's.
  Result<std::optional<SaveReport>> advance();

  // Collective: until nothing is in flight.
  Result<std::optional<SaveReport>> wait();

 private:
  enum class Phase { idle, files, node_manifests, manifest, choosing, removing };
  // Memory with every page touched.
  class Buffer {
   public:
    ~Buffer();
    Result<void> reserve(std::uint64_t bytes);
    std::byte* data() const { return data_; }

   private:
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
  };

  Result<std::vector<TensorSlice>> copied(std::span<const TensorSlice> slices);
  Result<void> begin(const CheckpointInfo& info, Result<void> prepared, std::vector<TensorSlice> slices);
  void run(std::function<Result<void>()> work);  // on the thread
  Result<bool> next_phase();
  Result<bool> all_ready();
  Result<void> choose_kept();
  void discard();
  Result<std::vector<std::string>> agree(const Result<void>& mine, const std::string& told = "");

  const SaverOptions options_;
  Comm& comm_;
  Buffer buffer_;

  // Of the save in flight.
  Phase phase_ = Phase::idle;
  CheckpointInfo info_;
  std::string path_;
  Room room_;
  bool first_of_node_ = false;  // of the group's ranks there
  std::vector<TensorSlice> slices_;
  std::string told_;                   // by the thread to all ranks; the thread's until ready()
  std::vector<json::Object> records_;  // of all files, where they are needed
  double stall_s_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point counted_at_;  // rank 0's; the thread's until ready()

  std::atomic<std::uint64_t> progress_{0};  // bytes written
  std::uint64_t progress_seen_ = 0;
  std::chrono::steady_clock::time_point progress_at_;

  mutable std::mutex mutex_;  // guards the next three
  std::condition_variable done_changed_;
  bool done_ = true;
  Result<void> outcome_;
  std::jthread thread_;
};

}  // namespace muster::train
