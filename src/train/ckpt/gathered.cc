#include "train/ckpt/gathered.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "train/ckpt/manifest.h"
#include "train/ckpt/rank_file.h"
#include "train/ckpt/room.h"
#include "train/comm/agree.h"

namespace muster::train {
namespace {

const TensorInfo* find_tensor(std::span<const TensorInfo> tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &TensorInfo::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::string text_of_slices(std::span<const TensorSlice> slices, const CheckpointInfo& info) {
  json::Array array;
  for (const TensorSlice& piece : slices) {
    const TensorInfo* tensor = find_tensor(info.tensors, piece.slice.tensor);
    MUSTER_ASSERT(tensor != nullptr);
    array.push_back(slice_to_json(piece.slice, *tensor));
  }
  return json::dump(json::Object{{"slices", std::move(array)}});
}

// What a rank sends: its slices as one stream of bytes.
class Outgoing {
 public:
  explicit Outgoing(std::span<const TensorSlice> slices) : slices_(slices) {}

  // Fills `piece` with what comes next, of which there is as much.
  void take(std::span<std::byte> piece) {
    while (!piece.empty()) {
      const auto rest = slices_.front().bytes.subspan(at_);
      const std::size_t count = std::min(rest.size(), piece.size());
      if (count > 0) std::memcpy(piece.data(), rest.data(), count);
      piece = piece.subspan(count);
      at_ += count;
      if (count < rest.size()) continue;
      slices_ = slices_.subspan(1);
      at_ = 0;
    }
  }

 private:
  std::span<const TensorSlice> slices_;
  std::size_t at_ = 0;  // in the first of them
};

// What rank 0 makes of a rank's stream.
class Incoming {
 public:
  static Result<Incoming> open(const std::string& step, int rank, int node, const std::string& slices,
                               const CheckpointInfo& info) {
    MUSTER_TRY(RankFile file, RankFile::create(step, rank, node));
    Incoming incoming(std::move(file));
    MUSTER_TRY(const json::Object object, json::parse_object(slices));
    for (const auto& value : object.at("slices").as_array()) {
      const json::Object& slice = value.as_object();
      MUSTER_TRY(const std::string name, json::get_string(slice, "tensor"));
      const TensorInfo* tensor = find_tensor(info.tensors, name);
      MUSTER_ASSERT(tensor != nullptr);
      MUSTER_TRY(Slice own, slice_from_json(slice, *tensor));
      incoming.slices_.push_back({std::move(own), tensor});
    }
    return incoming;
  }

  Result<void> put(std::span<const std::byte> piece) {
    while (!piece.empty()) {
      while (left_ == 0) MUSTER_CHECK(begin_next());
      const std::size_t count = std::min<std::uint64_t>(left_, piece.size());
      MUSTER_CHECK(file_.append(piece.first(count)));
      piece = piece.subspan(count);
      left_ -= count;
    }
    return {};
  }

  Result<json::Object> finish() {
    while (next_ < slices_.size()) MUSTER_CHECK(begin_next());  // empty ones
    return file_.finish();
  }

 private:
  explicit Incoming(RankFile file) : file_(std::move(file)) {}
  Result<void> begin_next() {
    const auto& [slice, tensor] = slices_[next_++];
    left_ = static_cast<std::uint64_t>(slice.numel()) * tensor->element_bytes();
    return file_.begin(slice, *tensor);
  }
  RankFile file_;
  std::vector<std::pair<Slice, const TensorInfo*>> slices_;
  std::size_t next_ = 0;
  std::uint64_t left_ = 0;  // of the slice before `next_`
};

struct Gathering {
  const std::string step;  // rank 0's folder
  const CheckpointInfo& info;
  const int node;
  Comm& comm;
  std::uint64_t piece_bytes;             // of each rank in a round
  std::vector<Incoming> files = {};      // at rank 0, one a rank
  std::vector<std::uint64_t> left = {};  // bytes that each rank has still to send
  std::vector<std::byte> pieces = {};    // of a round; at rank 0 of all ranks

  std::span<std::byte> piece(int rank) {
    const auto r = static_cast<std::size_t>(comm.rank() == 0 ? rank : 0);
    const auto bytes = std::min(piece_bytes, left[static_cast<std::size_t>(rank)]);
    return std::span(pieces).subspan(r * piece_bytes, bytes);
  }

  Result<void> open(const std::vector<std::string>& slices) {
    MUSTER_CHECK(prepare_step(step));
    for (int rank = 0; rank < comm.size(); ++rank) {
      MUSTER_TRY(Incoming file,
                 Incoming::open(step, rank, node, slices[static_cast<std::size_t>(rank)], info));
      files.push_back(std::move(file));
    }
    return {};
  }

  // One piece of every rank to rank 0. What goes wrong with a file is kept in `written`: the messages go on.
  Result<void> round(Outgoing& outgoing, Result<void>& written) {
    outgoing.take(piece(comm.rank()));
    std::vector<Send> sends;
    std::vector<Receive> receives;
    if (comm.rank() != 0) {
      if (!piece(comm.rank()).empty()) sends.push_back({0, piece(comm.rank())});
    } else {
      for (int rank = 1; rank < comm.size(); ++rank) {
        if (!piece(rank).empty()) receives.push_back({rank, piece(rank)});
      }
    }
    MUSTER_CHECK(comm.exchange(sends, receives));
    for (int rank = 0; rank < comm.size(); ++rank) {
      if (comm.rank() == 0 && written) written = files[static_cast<std::size_t>(rank)].put(piece(rank));
    }
    for (std::uint64_t& bytes : left) bytes -= std::min(bytes, piece_bytes);
    return {};
  }

  Result<void> finish() {
    std::vector<json::Object> records;
    for (Incoming& file : files) {
      MUSTER_TRY(json::Object record, file.finish());
      records.push_back(std::move(record));
    }
    MUSTER_CHECK(write_node_manifest(step, info.step, records, node));
    return write_manifest(step, info, records);
  }
};

}  // namespace

Result<void> save_gathered(const std::string& folder, const CheckpointInfo& info,
                           std::span<const TensorSlice> mine, int node, Comm& comm,
                           std::uint64_t round_bytes) {
  const auto size = static_cast<std::uint64_t>(comm.size());
  Gathering gathering{.step = step_folder(folder, info.step),
                      .info = info,
                      .node = node,
                      .comm = comm,
                      .piece_bytes = std::max<std::uint64_t>(1, round_bytes / size)};
  std::uint64_t bytes = 0;
  for (const TensorSlice& piece : mine) bytes += piece.bytes.size();
  gathering.left.resize(size);
  MUSTER_CHECK(comm.all_gather<std::uint64_t>(std::span(&bytes, 1), gathering.left));
  MUSTER_TRY(const auto slices, comm.gather_text(text_of_slices(mine, info)));
  const Room room(folder, bytes_of(info.tensors), kWhenFull);
  // At rank 0: what is left of a save that failed goes, and a full disk is explained.
  const auto outcome = [&](const Result<void>& result) -> Result<void> {
    if (result) return result;
    discard_step(gathering.step, 0, comm.size(), node);
    return tl::unexpected(room.explained(result.error()));
  };
  MUSTER_CHECK(agree(comm, comm.rank() == 0 ? outcome(gathering.open(slices)) : Result<void>()));
  gathering.piece_bytes = std::min(gathering.piece_bytes, std::ranges::max(gathering.left));
  gathering.pieces.resize((comm.rank() == 0 ? size : 1) * gathering.piece_bytes);
  Outgoing outgoing(mine);
  Result<void> written;
  while (std::ranges::max(gathering.left) > 0) MUSTER_CHECK(gathering.round(outgoing, written));
  if (comm.rank() == 0 && written) written = gathering.finish();
  return agree(comm, outcome(written));
}

}  // namespace muster::train
