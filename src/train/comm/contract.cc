#include "train/comm/contract.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/rng.h"

namespace muster::train {
namespace {

// Values of very different size and sign, so that every other order of summing gives other bits.
template <typename T>
std::vector<T> values_of(int rank, std::size_t count) {
  Rng rng(1000 + static_cast<std::uint64_t>(rank));
  std::vector<T> values(count);
  for (auto& value : values) {
    const double magnitude = static_cast<double>(1ULL << rng.below(40));
    value = static_cast<T>((rng.uniform() - 0.5) * magnitude);
  }
  return values;
}

template <typename T>
std::vector<T> expected_sum(int size, std::size_t count) {
  std::vector<T> sum = values_of<T>(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const auto values = values_of<T>(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::string said(const Result<void>& result) { return result ? "" : result.error().message; }

template <typename T>
std::string check_all_reduce(Comm& comm) {
  for (std::size_t count : {0u, 1u, 2u, 5u, 1000u, 4099u, 70'001u}) {
    auto data = values_of<T>(comm.rank(), count);
    if (auto done = comm.all_reduce<T>(data); !done) return said(done);
    if (!same_bits<T>(data, expected_sum<T>(comm.size(), count))) {
      return "all_reduce of " + std::to_string(count) + ": not the sum in rank order";
    }
  }
  return "";
}

// Parts of very different lengths, among them empty ones: the first rank's where there are several.
std::vector<Range> uneven_parts(int size, std::int64_t scale) {
  std::vector<Range> parts;
  std::int64_t end = 0;
  for (int rank = 0; rank < size; ++rank) {
    const std::int64_t length = rank == 0 && size > 1 ? 0 : scale * (rank % 3 + 1) + rank;
    parts.push_back({end, end + length});
    end += length;
  }
  return parts;
}

template <typename T>
std::span<T> part_in(std::span<T> data, Range range) {
  return data.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

template <typename T>
std::string check_reduce_scatter(Comm& comm) {
  for (const std::int64_t scale : {0, 1, 7, 3000}) {
    const auto parts = uneven_parts(comm.size(), scale);
    const auto total = static_cast<std::size_t>(parts.back().end);
    const auto before = values_of<T>(comm.rank(), total);
    auto data = before;
    if (auto done = comm.reduce_scatter<T>(data, parts); !done) return said(done);
    auto expected = before;
    const auto sum = expected_sum<T>(comm.size(), total);
    const Range mine = parts[static_cast<std::size_t>(comm.rank())];
    std::ranges::copy(part_in(std::span(sum), mine), expected.begin() + mine.begin);
    if (!same_bits<T>(data, expected))
      return "reduce_scatter: not the sum in its part, or another part changed";
  }
  return "";
}

// In bf16 the ones that follow 256 would be lost one by one: the next bf16 is 258.
std::string check_bf16_sum(Comm& comm) {
  std::vector<BFloat16> data(1500, BFloat16(comm.rank() == 0 ? 256.0F : 1.0F));
  const BFloat16 expected(256.0F + static_cast<float>(comm.size() - 1));
  if (auto done = comm.all_reduce<BFloat16>(data); !done) return said(done);
  for (const BFloat16 value : data) {
    if (value.bits != expected.bits) return "all_reduce of bf16: " + std::to_string(float{value});
  }
  return "";
}

std::string check_all_gather_parts(Comm& comm) {
  for (const std::int64_t scale : {0, 1, 3000}) {
    const auto parts = uneven_parts(comm.size(), scale);
    const auto total = static_cast<std::size_t>(parts.back().end);
    std::vector<double> data = values_of<double>(comm.rank(), total), expected(total);
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto theirs = values_of<double>(rank, total);
      const Range range = parts[static_cast<std::size_t>(rank)];
      std::ranges::copy(part_in(std::span(theirs), range), expected.begin() + range.begin);
    }
    if (auto done = comm.all_gather<double>(data, parts); !done) return said(done);
    if (!same_bits<double>(data, expected)) return "all_gather of uneven parts: wrong content";
  }
  return "";
}

std::string check_all_gather(Comm& comm) {
  const auto me = static_cast<std::size_t>(comm.rank());
  for (std::size_t count : {0u, 1u, 3000u}) {
    std::vector<double> expected;
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto values = values_of<double>(rank, count);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    const auto mine = values_of<double>(comm.rank(), count);
    std::vector<double> all(expected.size());
    if (auto done = comm.all_gather<double>(mine, all); !done) return said(done);
    if (!same_bits<double>(all, expected)) return "all_gather: wrong content";
    std::fill(all.begin(), all.end(), 0.0);
    const auto place = std::span(all).subspan(me * count, count);
    std::copy(mine.begin(), mine.end(), place.begin());
    if (auto done = comm.all_gather<double>(place, all); !done) return said(done);
    if (!same_bits<double>(all, expected)) return "all_gather in place: wrong content";
  }
  return "";
}

std::string text_of(int rank) {
  return std::string(static_cast<std::size_t>(rank) * 1000, static_cast<char>('a' + rank));
}

std::string check_gather_text(Comm& comm) {
  const auto texts = comm.gather_text(text_of(comm.rank()));
  if (!texts) return texts.error().message;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if ((*texts)[static_cast<std::size_t>(rank)] != text_of(rank)) return "gather_text: wrong text of a rank";
  }
  return "";
}

// Several messages of different sizes to every peer, both ways at once: they arrive in the order of posting.
std::string check_exchange(Comm& comm) {
  constexpr int kMessages = 5;
  std::vector<std::vector<int>> sent, received;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  const auto content = [](int from, int to, int k) {
    return std::vector<int>(static_cast<std::size_t>(1 + k * 5000), from * 10000 + to * 100 + k);
  };
  for (int peer = 0; peer < comm.size(); ++peer) {
    for (int k = 0; peer != comm.rank() && k < kMessages; ++k) {
      sent.push_back(content(comm.rank(), peer, k));
      received.emplace_back(content(peer, comm.rank(), k).size());
      sends.push_back({.to = peer, .data = std::as_bytes(std::span(sent.back()))});
      receives.push_back({.from = peer, .data = std::as_writable_bytes(std::span(received.back()))});
    }
  }
  if (auto done = comm.exchange(sends, receives); !done) return said(done);
  std::size_t next = 0;
  for (int peer = 0; peer < comm.size(); ++peer) {
    for (int k = 0; peer != comm.rank() && k < kMessages; ++k) {
      if (received[next++] != content(peer, comm.rank(), k))
        return "exchange: a message is wrong or out of order";
    }
  }
  return "";
}

// A stage of a pipeline sends and receives at once what its neighbour receives first and answers later:
// messages meet by their order between two ranks, however many operations either has needed.
std::string check_unlike_exchanges(Comm& comm) {
  if (comm.size() == 1) return "";
  const std::vector<int> there(5000, 1), back(7000, 2);
  std::vector<int> first(there.size()), second(back.size());
  const Send ask{.to = 1, .data = std::as_bytes(std::span(there))};
  const Send answer{.to = 0, .data = std::as_bytes(std::span(back))};
  const Receive question{.from = 0, .data = std::as_writable_bytes(std::span(first))};
  const Receive reply{.from = 1, .data = std::as_writable_bytes(std::span(second))};
  for (int round = 0; round < 3; ++round) {
    if (comm.rank() == 0) {
      if (auto done = comm.exchange({&ask, 1}, {&reply, 1}); !done) return said(done);
      if (second != back) return "exchange: the answer is wrong";
    } else if (comm.rank() == 1) {
      if (auto done = comm.exchange({}, {&question, 1}); !done) return said(done);
      if (auto done = comm.exchange({&answer, 1}, {}); !done) return said(done);
      if (first != there) return "exchange: the question is wrong";
    }
  }
  return said(comm.barrier());
}

std::int64_t machine_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Nobody leaves a barrier before everybody has come. One machine, one clock.
std::string check_barrier(Comm& comm) {
  for (int late = 0; late < comm.size(); ++late) {
    if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::int64_t mine[2] = {machine_ns(), (comm.barrier() ? machine_ns() : 0)};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(comm.size()));
    if (auto done = comm.all_gather<std::int64_t>(mine, all); !done) return said(done);
    for (std::size_t a = 0; a < all.size(); a += 2) {
      for (std::size_t b = 0; b < all.size(); b += 2) {
        if (all[b + 1] < all[a]) return "barrier: a rank left before another had come";
      }
    }
  }
  return "";
}

std::string check_log(Comm& comm) {
  std::vector<float> data(static_cast<std::size_t>(comm.size()) * 10);
  if (auto done = comm.all_reduce<float>(data); !done) return said(done);
  if (auto done = comm.barrier(); !done) return said(done);
  const auto log = comm.recent();
  if (log.size() != 2) return "log: " + std::to_string(log.size()) + " records, expected 2";
  // Reduce-scatter and all-gather move (n - 1) chunks each.
  const auto bytes = 2 * static_cast<std::uint64_t>(comm.size() - 1) * 10 * sizeof(float);
  if (log[0].name != "all_reduce" || log[0].sequence != 1 || log[0].bytes_sent != bytes) {
    return "log: " + log[0].name + " with " + std::to_string(log[0].bytes_sent) +
           " bytes, expected all_reduce with " + std::to_string(bytes);
  }
  if (log[1].name != "barrier" || log[1].state != OperationRecord::State::done)
    return "log: no finished barrier";
  for (std::size_t i = 0; i < Comm::kRecent; ++i) {
    if (auto done = comm.barrier(); !done) return said(done);
  }
  if (comm.recent().size() != Comm::kRecent || comm.recent().front().sequence != 3)
    return "log: the ring does not turn";
  return "";
}

bool mentions(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// The last rank leaves without a word: the others learn it at the next operation, not by the time-out.
std::string check_peer_gone(std::unique_ptr<Comm>& comm, Millis wait) {
  if (comm->size() == 1) return "";
  if (auto done = comm->barrier(); !done) return said(done);
  const int last = comm->size() - 1;
  if (comm->rank() == last) {
    comm.reset();
    return "";
  }
  const std::int64_t start = machine_ns();
  std::vector<float> data(1000);
  const auto done = comm->all_reduce<float>(data);
  if (done) return "all_reduce without the last rank passed";
  const auto& error = done.error();
  if (machine_ns() - start > wait.count() * 900'000) return "the loss of a rank was only noticed by time-out";
  if (!mentions(error.message, "all_reduce #2 of test, rank " + std::to_string(comm->rank())))
    return error.message;
  if (!mentions(error.message, "rank " + std::to_string(last)))
    return "does not name the rank that left: " + error.message;
  if (comm->recent().back().state != OperationRecord::State::failed)
    return "the log does not show the failure";
  return "";
}

// The last rank is there but does not take part: the others give up after the time-out and name it.
std::string check_peer_stuck(std::unique_ptr<Comm>& comm, Millis wait) {
  if (comm->size() == 1) return "";
  if (auto done = comm->barrier(); !done) return said(done);
  if (comm->rank() == comm->size() - 1) return "";
  const std::int64_t start = machine_ns();
  std::vector<float> data(1000);
  const auto done = comm->all_reduce<float>(data);
  const Millis waited{(machine_ns() - start) / 1'000'000};
  if (done) return "all_reduce without the last rank passed";
  if (done.error().code != ErrorCode::timeout) return "not a time-out: " + done.error().message;
  if (!mentions(done.error().message, "all_reduce #2 of test")) return done.error().message;
  if (waited > wait + Millis(1000)) return "gave up only after " + format_duration(waited);
  return "";
}

}  // namespace

std::vector<CommCheck> comm_contract(Millis wait) {
  const auto keep = [](std::string (*check)(Comm&)) {
    return [check](std::unique_ptr<Comm>& comm) { return check(*comm); };
  };
  return {
      {"all_reduce_f32", keep(check_all_reduce<float>)},
      {"all_reduce_f64", keep(check_all_reduce<double>)},
      {"all_reduce_i64", keep(check_all_reduce<std::int64_t>)},
      {"all_reduce_bf16", keep(check_bf16_sum)},
      {"reduce_scatter_f32", keep(check_reduce_scatter<float>)},
      {"reduce_scatter_f64", keep(check_reduce_scatter<double>)},
      {"all_gather_parts", keep(check_all_gather_parts)},
      {"all_gather", keep(check_all_gather)},
      {"gather_text", keep(check_gather_text)},
      {"exchange", keep(check_exchange)},
      {"unlike_exchanges", keep(check_unlike_exchanges)},
      {"barrier", keep(check_barrier)},
      {"log", keep(check_log)},
      {"peer_gone", [wait](std::unique_ptr<Comm>& comm) { return check_peer_gone(comm, wait); }},
      {"peer_stuck", [wait](std::unique_ptr<Comm>& comm) { return check_peer_stuck(comm, wait); }},
  };
}

}  // namespace muster::train
