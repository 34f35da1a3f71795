// Collectives of one group of ranks, the same on every backend.
//
// A backend (Transport) does one thing: a batch of point-to-point messages. Every collective is built here
// from that, once. So the order of every sum is ours and equal on all backends: a reduction is an
// all-to-all, then a sum in rank order, element by element. It does not depend on where an element lies in
// the buffer or on how messages arrive; gloo's own reductions do, from three ranks on. Cost: each rank moves
// (n - 1) / n of the bytes for a reduce-scatter or an all-gather, twice that for an all-reduce.
//
// All ranks of a group make the same calls in the same order with the same sizes. Every call is written to a
// ring buffer before it starts (recent()), and an error names operation, number, group, rank and peer. After
// an error the group is broken and answers errors only.
//
// One thread uses a Comm at a time; busy(), recent() and abort() may be called from any
// thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/layout/dtype.h"
#include "train/layout/layout.h"

namespace muster::train {

struct Send {
  int to = 0;
  std::span<const std::byte> data;
};
struct Receive {
  int from = 0;
  std::span<std::byte> data;
};

// One collective as its messages and errors name it: "all_reduce #12 of replica".
struct Operation {
  std::uint64_t sequence = 0;  // counts the operations of the group, from 1
  std::string_view name;
  std::string_view group;
  std::source_location site = {};  // where it was called
  std::string describe() const;
};

// The backend of a group: bytes between its ranks. Implementations: thread.h, gloo/gloo.h.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Does all of these at once and returns when all are done. There are no tags: between two ranks the k-th
  // send meets the k-th receive, and both have the same size. Not to itself. Errors: timeout, naming the
  // ranks waited for; unavailable, a peer is gone; cancelled after abort().
  virtual Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                const Operation& operation) = 0;

  // Makes this rank's exchanges fail from now on: one that waits ends at once or at its time-out.
  virtual void abort(std::string_view reason) = 0;
};

struct OperationRecord {
  std::uint64_t sequence = 0;  // in its group
  std::string name;
  std::string group;
  std::uint64_t bytes_sent = 0;  // by this rank
  enum class State { running, done, failed } state = State::running;
  std::int64_t start_ns = 0;     // steady clock
  std::int64_t duration_ns = 0;  // 0 while running
};

class Comm {
 public:
  Comm(std::string group, std::unique_ptr<Transport> transport);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& group() const { return group_; }

  // data: the sum over ranks, in rank order, on every rank. T: float, double, std::int64_t, or BFloat16,
  // which is summed in fp32 and rounded once.
  template <typename T>
  Result<void> all_reduce(std::span<T> data, std::source_location site = std::source_location::current());

  // `parts` cuts data: part r is rank r's, one behind the other, without gaps, and may be empty; the same on
  // all ranks.
  //
  // data[parts[rank()]]: the sum over ranks, in rank order. The rest of data keeps what it was.
  template <typename T>
  Result<void> reduce_scatter(std::span<T> data, std::span<const Range> parts,
                              std::source_location site = std::source_location::current());
  // data[parts[r]]: what rank r has there, on every rank.
  template <typename T>
  Result<void> all_gather(std::span<T> data, std::span<const Range> parts,
                          std::source_location site = std::source_location::current()) {
    return all_gather(std::as_writable_bytes(data), parts, sizeof(T), site);
  }
  // The same, of elements of `width` bytes.
  Result<void> all_gather(std::span<std::byte> data, std::span<const Range> parts, std::size_t width,
                          std::source_location site = std::source_location::current());

  // all: the ranks' `mine` one after the other. all.size() == size() * mine.size(). `mine` may be its own
  // place in `all`.
  Result<void> all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                          std::source_location site = std::source_location::current());
  template <typename T>
  Result<void> all_gather(std::span<const T> mine, std::span<T> all,
                          std::source_location site = std::source_location::current()) {
    return all_gather(std::as_bytes(mine), std::as_writable_bytes(all), site);
  }

  // Every rank's text, of any length, on every rank.
  Result<std::vector<std::string>> gather_text(std::string_view mine,
                                               std::source_location site = std::source_location::current());

  // Point-to-point messages, all at once: see Transport::exchange.
  Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        std::source_location site = std::source_location::current());

  // Returns when every rank has called it.
  Result<void> barrier(std::source_location site = std::source_location::current());

  // A group of some of these ranks, this one among them; its rank r is members[r] here, and its name says so:
  // "tp (ranks 2, 3 of world)". It sends through this group's transport and shares its ring of operations, so
  // this Comm must outlive it, one thread uses both at a time, and two ranks that share several groups must
  // use them in the same order. abort() of it ends this one too.
  std::unique_ptr<Comm> subgroup(std::string name, std::vector<int> members);

  void abort(std::string_view reason) { transport_->abort(reason); }

  // The time that this rank has been in operations of this group, the one that it is a subgroup of, and all
  // others of that, waiting for peers included. Counts those that have ended.
  std::chrono::nanoseconds busy() const;

  // The last operations of this group, the one that it is a subgroup of, and all others of that, oldest
  // first, at most kRecent.
  static constexpr std::size_t kRecent = 256;
  std::vector<OperationRecord> recent() const;

 private:
  class Logged;
  struct Common;
  Comm(std::string group, std::unique_ptr<Transport> transport, std::shared_ptr<Common> common);
  std::vector<Range> even_parts(std::size_t total) const;
  Result<void> run(const Logged& logged, std::span<const Send> sends, std::span<const Receive> receives);
  template <typename T>
  Result<void> sum_part(const Logged& logged, std::span<T> data, std::span<const Range> parts);
  Result<void> spread_parts(const Logged& logged, std::span<std::byte> data, std::span<const Range> parts,
                            std::size_t width);

  const std::string group_;
  const std::unique_ptr<Transport> transport_;
  const int rank_;
  const int size_;
  std::uint64_t sequence_ = 0;
  const std::shared_ptr<Common> common_;  // with the group that this is a subgroup of, and its others
};

// A group of one rank: nothing to send. For runs without peers.
std::unique_ptr<Transport> single_transport();

}  // namespace muster::train
