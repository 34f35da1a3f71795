#include "train/comm/comm.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/assert.h"

namespace muster::train {
namespace {

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class SingleTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        const Operation&) override {
    MUSTER_ASSERT(sends.empty() && receives.empty());
    return {};
  }
  void abort(std::string_view) override {}
};

// Some ranks of a larger group, by its transport.
class SubgroupTransport final : public Transport {
 public:
  SubgroupTransport(Transport& all, std::vector<int> members) : all_(all), members_(std::move(members)) {
    const auto found = std::ranges::find(members_, all.rank());
    MUSTER_ASSERT(found != members_.end());
    rank_ = static_cast<int>(found - members_.begin());
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        const Operation& operation) override {
    std::vector<Send> out(sends.begin(), sends.end());
    std::vector<Receive> in(receives.begin(), receives.end());
    for (Send& send : out) send.to = members_[static_cast<std::size_t>(send.to)];
    for (Receive& receive : in) receive.from = members_[static_cast<std::size_t>(receive.from)];
    return all_.exchange(out, in, operation);
  }
  void abort(std::string_view reason) override { all_.abort(reason); }

 private:
  Transport& all_;
  const std::vector<int> members_;
  int rank_ = 0;
};

// sum[i] = parts[0][i] + parts[1][i] + ..., left to right. `sum` may be one of the parts.
template <typename T>
void sum_in_order(std::span<const T* const> parts, std::span<T> sum) {
  constexpr std::size_t kBlock = 1024;  // stays in the first-level cache
  std::array<Wide<T>, kBlock> block;
  for (std::size_t begin = 0; begin < sum.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, sum.size() - begin);
    std::copy_n(parts[0] + begin, count, block.data());
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const T* part = parts[p] + begin;
      for (std::size_t i = 0; i < count; ++i) block[i] += part[i];
    }
    for (std::size_t i = 0; i < count; ++i) sum[begin + i] = static_cast<T>(block[i]);
  }
}

template <typename T>
std::span<T> part(std::span<T> data, Range range) {
  return data.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

void check_parts(std::span<const Range> parts, int size, std::size_t total) {
  MUSTER_ASSERT(parts.size() == static_cast<std::size_t>(size));
  std::int64_t end = 0;
  for (const Range& range : parts) {
    MUSTER_ASSERT(range.begin == end && range.end >= end);
    end = range.end;
  }
  MUSTER_ASSERT(end == static_cast<std::int64_t>(total));
}

}  // namespace

std::string Operation::describe() const {
  return std::string(name) + " #" + std::to_string(sequence) + " of " + std::string(group);
}

std::unique_ptr<Transport> single_transport() { return std::make_unique<SingleTransport>(); }

// What a group and its subgroups share.
struct Comm::Common {
  std::mutex mutex;  // guards all but scratch
  std::vector<OperationRecord> records;
  std::uint64_t count = 0;         // of operations; the next one's place in the ring
  int running = 0;                 // of them, one within the other
  std::int64_t busy_ns = 0;        // in those that have ended
  std::vector<std::byte> scratch;  // kept: its pages are paid for once
};

// Writes one operation to the ring when it starts and when it ends.
class Comm::Logged {
 public:
  Logged(Comm& comm, std::string_view name, std::source_location site)
      : common_(*comm.common_),
        operation_{.sequence = ++comm.sequence_, .name = name, .group = comm.group_, .site = site} {
    OperationRecord record{.sequence = operation_.sequence,
                           .name = std::string(name),
                           .group = comm.group_,
                           .start_ns = steady_ns()};
    const std::lock_guard lock(common_.mutex);
    number_ = common_.count++;
    ++common_.running;
    if (common_.records.size() < kRecent) {
      common_.records.push_back(std::move(record));
    } else {
      slot() = std::move(record);
    }
  }
  ~Logged() {
    const std::lock_guard lock(common_.mutex);
    slot().duration_ns = steady_ns() - slot().start_ns;
    if (--common_.running == 0) common_.busy_ns += slot().duration_ns;
    slot().state = ok_ ? OperationRecord::State::done : OperationRecord::State::failed;
  }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;

  void sent(std::uint64_t bytes) const {
    const std::lock_guard lock(common_.mutex);
    slot().bytes_sent += bytes;
  }
  Result<void> end(Result<void> result) {
    ok_ = result.has_value();
    return result;
  }
  const Operation& operation() const { return operation_; }

 private:
  OperationRecord& slot() const { return common_.records[number_ % kRecent]; }
  Common& common_;
  Operation operation_;
  std::uint64_t number_ = 0;
  bool ok_ = false;
};

Comm::Comm(std::string group, std::unique_ptr<Transport> transport)
    : Comm(std::move(group), std::move(transport), std::make_shared<Common>()) {}

Comm::Comm(std::string group, std::unique_ptr<Transport> transport, std::shared_ptr<Common> common)
    : group_(std::move(group)),
      transport_(std::move(transport)),
      rank_(transport_->rank()),
      size_(transport_->size()),
      common_(std::move(common)) {
  MUSTER_ASSERT(size_ >= 1 && rank_ >= 0 && rank_ < size_);
}

Comm::~Comm() = default;

std::vector<Range> Comm::even_parts(std::size_t total) const {
  std::vector<Range> parts;
  for (int rank = 0; rank < size_; ++rank)
    parts.push_back(part_of(static_cast<std::int64_t>(total), rank, size_));
  return parts;
}

// One round of messages; empty ones are left out on both sides.
Result<void> Comm::run(const Logged& logged, std::span<const Send> sends, std::span<const Receive> receives) {
  std::vector<Send> out;
  std::vector<Receive> in;
  std::uint64_t bytes = 0;
  for (const Send& send : sends) {
    MUSTER_ASSERT(send.to >= 0 && send.to < size_ && send.to != rank_);
    if (!send.data.empty()) out.push_back(send);
    bytes += send.data.size();
  }
  for (const Receive& receive : receives) {
    MUSTER_ASSERT(receive.from >= 0 && receive.from < size_ && receive.from != rank_);
    if (!receive.data.empty()) in.push_back(receive);
  }
  logged.sent(bytes);
  if (out.empty() && in.empty()) return {};
  auto result = transport_->exchange(out, in, logged.operation());
  if (!result) {
    return tl::unexpected(result.error().with_context(
        logged.operation().describe() + ", rank " + std::to_string(rank_) + " of " + std::to_string(size_)));
  }
  return result;
}

template <typename T>
Result<void> Comm::sum_part(const Logged& logged, std::span<T> data, std::span<const Range> parts) {
  check_parts(parts, size_, data.size());
  const std::span<T> mine = part(data, parts[static_cast<std::size_t>(rank_)]);
  auto& scratch = common_->scratch;
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(size_ - 1) * mine.size_bytes()));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  std::vector<const T*> summands;
  std::byte* free = scratch.data();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) {
      summands.push_back(mine.data());
      continue;
    }
    sends.push_back({.to = peer, .data = std::as_bytes(part(data, parts[static_cast<std::size_t>(peer)]))});
    receives.push_back({.from = peer, .data = {free, mine.size_bytes()}});
    summands.push_back(reinterpret_cast<const T*>(free));
    free += mine.size_bytes();
  }
  MUSTER_CHECK(run(logged, sends, receives));
  sum_in_order<T>(summands, mine);
  return {};
}

// `width`: bytes of an element.
Result<void> Comm::spread_parts(const Logged& logged, std::span<std::byte> data, std::span<const Range> parts,
                                std::size_t width) {
  check_parts(parts, size_, data.size() / width);
  const auto bytes_of = [&](int rank) {
    const Range range = parts[static_cast<std::size_t>(rank)];
    return data.subspan(static_cast<std::size_t>(range.begin) * width,
                        static_cast<std::size_t>(range.size()) * width);
  };
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    sends.push_back({.to = peer, .data = bytes_of(rank_)});
    receives.push_back({.from = peer, .data = bytes_of(peer)});
  }
  return run(logged, sends, receives);
}

template <typename T>
Result<void> Comm::all_reduce(std::span<T> data, std::source_location site) {
  Logged logged(*this, "all_reduce", site);
  if (size_ == 1) return logged.end({});
  const auto parts = even_parts(data.size());
  if (auto summed = sum_part<T>(logged, data, parts); !summed) return logged.end(summed);
  return logged.end(spread_parts(logged, std::as_writable_bytes(data), parts, sizeof(T)));
}

template <typename T>
Result<void> Comm::reduce_scatter(std::span<T> data, std::span<const Range> parts,
                                  std::source_location site) {
  Logged logged(*this, "reduce_scatter", site);
  return logged.end(sum_part<T>(logged, data, parts));
}

Result<void> Comm::all_gather(std::span<std::byte> data, std::span<const Range> parts, std::size_t width,
                              std::source_location site) {
  Logged logged(*this, "all_gather", site);
  return logged.end(spread_parts(logged, data, parts, width));
}

template Result<void> Comm::all_reduce(std::span<float>, std::source_location);
template Result<void> Comm::all_reduce(std::span<double>, std::source_location);
template Result<void> Comm::all_reduce(std::span<BFloat16>, std::source_location);
template Result<void> Comm::all_reduce(std::span<std::int64_t>, std::source_location);
template Result<void> Comm::reduce_scatter(std::span<float>, std::span<const Range>, std::source_location);
template Result<void> Comm::reduce_scatter(std::span<double>, std::span<const Range>, std::source_location);
template Result<void> Comm::reduce_scatter(std::span<BFloat16>, std::span<const Range>, std::source_location);

Result<void> Comm::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                              std::source_location site) {
  Logged logged(*this, "all_gather", site);
  MUSTER_ASSERT(all.size() == mine.size() * static_cast<std::size_t>(size_));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int peer = 0; peer < size_; ++peer) {
    const auto place = all.subspan(static_cast<std::size_t>(peer) * mine.size(), mine.size());
    if (peer == rank_) {
      if (!mine.empty() && place.data() != mine.data()) std::memmove(place.data(), mine.data(), mine.size());
      continue;
    }
    sends.push_back({.to = peer, .data = mine});
    receives.push_back({.from = peer, .data = place});
  }
  return logged.end(run(logged, sends, receives));
}

Result<std::vector<std::string>> Comm::gather_text(std::string_view mine, std::source_location site) {
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size_));
  const std::uint64_t length = mine.size();
  MUSTER_CHECK(all_gather<std::uint64_t>(std::span(&length, 1), lengths));
  Logged logged(*this, "gather_text", site);
  std::vector<std::string> texts(static_cast<std::size_t>(size_));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int peer = 0; peer < size_; ++peer) {
    auto& text = texts[static_cast<std::size_t>(peer)];
    if (peer == rank_) {
      text = mine;
      continue;
    }
    text.resize(lengths[static_cast<std::size_t>(peer)]);
    sends.push_back({.to = peer, .data = std::as_bytes(std::span(mine))});
    receives.push_back({.from = peer, .data = std::as_writable_bytes(std::span(text))});
  }
  MUSTER_CHECK(logged.end(run(logged, sends, receives)));
  return texts;
}

Result<void> Comm::exchange(std::span<const Send> sends, std::span<const Receive> receives,
                            std::source_location site) {
  Logged logged(*this, "exchange", site);
  return logged.end(run(logged, sends, receives));
}

std::unique_ptr<Comm> Comm::subgroup(std::string name, std::vector<int> members) {
  constexpr std::size_t kNamed = 8;  // of a larger group the rest is left out
  std::string ranks;
  for (std::size_t i = 0; i < std::min(members.size(), kNamed); ++i)
    ranks += (i == 0 ? "" : ", ") + std::to_string(members[i]);
  name += " (ranks " + ranks + (members.size() > kNamed ? ", ..." : "") + " of " + group_ + ")";
  auto transport = std::make_unique<SubgroupTransport>(*transport_, std::move(members));
  return std::unique_ptr<Comm>(new Comm(std::move(name), std::move(transport), common_));
}

// Dissemination barrier: in round k every rank tells the one 2^k further on; ceil(log2 n) rounds.
Result<void> Comm::barrier(std::source_location site) {
  Logged logged(*this, "barrier", site);
  for (int distance = 1; distance < size_; distance *= 2) {
    const std::byte token{1};
    std::byte received{};
    const Send send{.to = (rank_ + distance) % size_, .data = std::span(&token, 1)};
    const Receive receive{.from = (rank_ - distance + size_) % size_, .data = std::span(&received, 1)};
    if (auto round = run(logged, std::span(&send, 1), std::span(&receive, 1)); !round)
      return logged.end(round);
  }
  return logged.end({});
}

std::chrono::nanoseconds Comm::busy() const {
  const std::lock_guard lock(common_->mutex);
  return std::chrono::nanoseconds(common_->busy_ns);
}

std::vector<OperationRecord> Comm::recent() const {
  const std::lock_guard lock(common_->mutex);
  const auto& ring = common_->records;
  const std::size_t oldest = ring.size() < kRecent ? 0 : common_->count % kRecent;
  std::vector<OperationRecord> ordered(ring.begin() + static_cast<std::ptrdiff_t>(oldest), ring.end());
  ordered.insert(ordered.end(), ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(oldest));
  return ordered;
}

}  // namespace muster::train
