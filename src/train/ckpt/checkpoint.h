// Checkpoints: a folder per step, written by all ranks (saver.h), read by any number of ranks.
//
// Format: docs/formats/checkpoint-v1.md. A step counts only when manifest.json is there (it comes last) and
// every file it names has the right size and checksums. Ranks are an accident of writing: a reader asks for
// ranges of tensors and never sees who wrote them.
//
// Bytes in, bytes out, by slices of global tensors (train/layout): no libtorch, no notion of a model. A
// Reader belongs to one thread at a time; the rest are functions of the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "train/comm/comm.h"
#include "train/layout/layout.h"

namespace muster::train {

struct TensorInfo {
  std::string name;
  std::string dtype;  // F32, F64 or I64, as safetensors names them
  std::vector<std::int64_t> shape;

  std::uint64_t numel() const;
  std::uint64_t element_bytes() const;
  bool operator==(const TensorInfo&) const = default;
};

struct TensorSlice {
  Slice slice;
  std::span<const std::byte> bytes;  // of its elements, one behind the other
};

// What is saved with the tensors. Everything here is the same on all ranks.
struct CheckpointInfo {
  std::int64_t step = 0;
  std::uint64_t samples = 0;  // consumed: the whole state of the data
  std::string tokenizer_hash;
  json::Object config;  // resolved, dotted keys
  json::Object layout;  // world, mesh
  // What "bitwise" depends on, CPU kind, threads, library: the kinds that the ranks ran on, each once.
  std::vector<json::Object> machines;
  json::Object data;  // what the token stream was
  std::vector<TensorInfo> tensors;
};

// Told now and then how far something long is, in bytes.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Who writes: its file is rank-R.bin; the first of the group's ranks on each node writes node-K.json.
struct Writer {
  int node = 0;
  int local_rank = 0;
};

class Reader {
 public:
  // Reads the manifest and checks that all files are there in full. not_found: no manifest, the step was not
  // finished; corrupt: something is missing, cut or altered, and what.
  static Result<Reader> open(const std::string& step_folder);

  const CheckpointInfo& info() const { return info_; }
  std::uint64_t bytes() const;  // of all files
  int files() const { return static_cast<int>(files_.size()); }

  // The elements of a slice into `out`, whoever wrote them: only the blocks that hold them are read, and each
  // is checked; corrupt names file and block. not_found: no such tensor; invalid_argument: the slice does not
  // lie in it. Precondition: `out` has the slice's size.
  Result<void> read(const Slice& slice, std::span<std::byte> out);

  // Reads every block of every file; of `parts` readers that share this, one reads each block. `look`, if
  // given, is told the bytes of each.
  Result<void> verify(int part = 0, int parts = 1, const std::function<void(std::uint64_t bytes)>& look = {});

 private:
  struct File {
    std::string name;
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> crcs;
  };
  struct Stored {
    Slice slice;
    std::size_t file = 0;
    std::uint64_t offset = 0;
  };
  // A tensor and what is stored of it, by box, then place in the box.
  struct Tensor {
    std::size_t info = 0;
    std::vector<Stored> stored;
  };
  Result<void> parse(const json::Object& manifest);
  Result<void> parse_file(const json::Object& object);
  Result<void> parse_slice(const json::Object& object);
  Result<void> check_cover(const Tensor& tensor) const;
  Result<void> check_place(const TensorInfo& tensor, const Stored& stored) const;
  Result<void> check_files() const;
  Result<void> load_block(std::size_t file, std::uint64_t block);
  Result<void> read_file_range(std::size_t file, std::uint64_t offset, std::span<std::byte> out);

  std::string folder_;
  CheckpointInfo info_;
  std::vector<File> files_;
  std::map<std::string, std::size_t, std::less<>> file_numbers_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  // The block read last.
  std::string block_;
  std::size_t block_file_ = SIZE_MAX;
  std::uint64_t block_index_ = 0;
};

inline constexpr std::uint64_t kBlockBytes = 4u << 20;
inline constexpr std::string_view kOptimizerPrefix = "optimizer.";  // of the tensors that are no weights

// FOLDER/step-N.
std::string step_folder(const std::string& folder, std::int64_t step);

// A step in a folder, whole or not.
struct StepEntry {
  std::int64_t step = 0;
  std::string path;
  bool finished = false;         // has a manifest
  std::optional<Error> problem;  // finished, but not valid
  std::uint64_t bytes = 0;       // of its tensor files, if valid
};
// The steps in a folder, newest first; none if there is no folder. deep: also reads every block, and tells
// `progress`.
Result<std::vector<StepEntry>> list_checkpoints(const std::string& folder, bool deep,
                                                const Progress& progress = {});

// What to do with a finished step that is damaged.
enum class OnDamage {
  refuse,     // an error that names it
  pass_over,  // a notice that names it; the one before it is taken
};

struct Latest {
  std::optional<Reader> reader;
  std::vector<std::string> notices;  // newer steps that were passed over, and why
};
// The newest finished step. Unfinished ones are passed over with a notice: a save that was cut off leaves
// them. No finished step: no reader. Damage that shows only in a tensor's bytes is found under `refuse` by
// who reads them, under `pass_over` at once, since every block is read. corrupt: the newest is damaged and
// `refuse`, or none is whole.
Result<Latest> latest_checkpoint(const std::string& folder, OnDamage on_damage);
// Collective: the same answer on all ranks, which share the reading. failed_precondition: they see different
// steps.
Result<Latest> latest_checkpoint(const std::string& folder, OnDamage on_damage, Comm& comm);

// Which finished steps stay.
struct Keep {
  std::int64_t last = 2;   // so many of the newest; at least 1
  std::int64_t every = 0;  // and all steps that this divides; 0: no others
};
// Of the finished steps up to `newest`, newest first. Later ones, left by a run that was taken back, are not
// counted: they may be the reason why it was.
Result<std::vector<std::int64_t>> kept_checkpoints(const std::string& folder, const Keep& keep,
                                                   std::int64_t newest);

// Removes the steps before `newest` that are not in `kept`, unfinished ones too. A step loses its manifest
// first, so that a half-removed one never counts. Where each node has a folder of its own, only the first
// one's shows which steps are finished: it says what is kept.
Result<void> remove_checkpoints(const std::string& folder, const std::vector<std::int64_t>& kept,
                                std::int64_t newest);

}  // namespace muster::train
