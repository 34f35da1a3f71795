#include "train/comm/thread.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "base/assert.h"

namespace muster::train {

class ThreadWorld::Hub {
 public:
  Hub(int size, Millis timeout) : timeout_(timeout), ranks_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(ranks_.size()); }

  void join(int rank) {
    const std::lock_guard lock(mutex_);
    MUSTER_ASSERT(state(rank).phase == Phase::absent);
    state(rank).phase = Phase::running;
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    state(rank).phase = Phase::gone;
    look_for_deadlock();
  }

  void abort(int rank, std::string_view reason) {
    const std::lock_guard lock(mutex_);
    fail_all({ErrorCode::cancelled, "rank " + std::to_string(rank) + " aborted: " + std::string(reason)});
  }

  Result<void> exchange(int rank, std::span<const Send> sends, std::span<const Receive> receives,
                        const Operation& operation) {
    std::unique_lock lock(mutex_);
    if (failed_) return tl::unexpected(*failed_);
    Rank& mine = state(rank);
    mine.operation = operation.describe();
    mine.pending.clear();
    mine.remaining = sends.size() + receives.size();
    for (const Send& send : sends) {
      mine.pending.push_back({.peer = send.to, .source = send.data.data(), .bytes = send.data.size()});
    }
    for (const Receive& receive : receives) {
      mine.pending.push_back(
          {.peer = receive.from, .target = receive.data.data(), .bytes = receive.data.size()});
    }
    for (Message& message : mine.pending) post(rank, message);
    for (const Message& message : mine.pending) match(rank, message);
    mine.phase = Phase::waiting;
    look_for_deadlock();
    const bool in_time = changed_.wait_for(lock, timeout_, [&] { return failed_ || mine.remaining == 0; });
    if (!in_time) {
      fail_all(
          {ErrorCode::timeout, "no answer within " + format_duration(timeout_) + ": " + waits_for(rank)});
    }
    mine.phase = Phase::running;
    if (mine.remaining == 0) return {};
    return tl::unexpected(*failed_);
  }

 private:
  enum class Phase { absent, running, waiting, gone };
  struct Message {
    int peer = 0;
    const std::byte* source = nullptr;  // of a send
    std::byte* target = nullptr;        // of a receive
    std::size_t bytes = 0;
    bool done = false;
  };
  struct Rank {
    Phase phase = Phase::absent;
    std::string operation;
    std::deque<Message> pending;  // of the exchange it is in
    std::size_t remaining = 0;    // of pending, not done
  };
  struct Channel {
    std::deque<Message*> sends;
    std::deque<Message*> receives;
  };

  Rank& state(int rank) {
    MUSTER_ASSERT(rank >= 0 && rank < size());
    return ranks_[static_cast<std::size_t>(rank)];
  }
  Channel& channel(int from, int to) { return channels_[{from, to}]; }

  void post(int rank, Message& message) {
    if (message.source != nullptr) {
      channel(rank, message.peer).sends.push_back(&message);
    } else {
      channel(message.peer, rank).receives.push_back(&message);
    }
  }

  // Pairs what has met on the channel of `message`.
  void match(int rank, const Message& message) {
    const int from = message.source != nullptr ? rank : message.peer;
    const int to = message.source != nullptr ? message.peer : rank;
    Channel& c = channel(from, to);
    while (!failed_ && !c.sends.empty() && !c.receives.empty()) {
      Message& send = *c.sends.front();
      Message& receive = *c.receives.front();
      if (send.bytes != receive.bytes) {
        return fail_all({ErrorCode::invalid_argument,
                         "rank " + std::to_string(from) + " sends " + std::to_string(send.bytes) +
                             " bytes in " + state(from).operation + ", rank " + std::to_string(to) +
                             " expects " + std::to_string(receive.bytes) + " in " + state(to).operation});
      }
      std::memcpy(receive.target, send.source, send.bytes);
      c.sends.pop_front();
      c.receives.pop_front();
      send.done = receive.done = true;
      --state(from).remaining;
      --state(to).remaining;
      changed_.notify_all();
    }
  }

  void fail_all(Error error) {
    if (!failed_) failed_ = std::move(error);
    channels_.clear();
    changed_.notify_all();
  }

  // Nobody can move: each rank waits for a message, or has left, and at least one waits.
  void look_for_deadlock() {
    bool anyone = false;
    for (const Rank& rank : ranks_) {
      const bool stuck = rank.phase == Phase::waiting && rank.remaining > 0;
      if (!stuck && rank.phase != Phase::gone) return;
      anyone = anyone || stuck;
    }
    if (!anyone || failed_) return;
    std::string report = "deadlock, no rank can go on";
    for (int rank = 0; rank < size(); ++rank) report += "; " + waits_for(rank);
    fail_all({ErrorCode::failed_precondition, report});
  }

  std::string waits_for(int rank) {
    const Rank& r = state(rank);
    const std::string name = "rank " + std::to_string(rank);
    if (r.phase == Phase::gone) return name + " has left";
    if (r.phase != Phase::waiting) return name + " is busy";
    std::string text = name + " in " + r.operation + " waits to";
    const char* separator = " ";
    for (const Message& message : r.pending) {
      if (message.done) continue;
      text += separator + std::string(message.source != nullptr ? "send " : "receive ") +
              std::to_string(message.bytes) + " bytes " + (message.source != nullptr ? "to" : "from") +
              " rank " + std::to_string(message.peer);
      separator = ", ";
    }
    return text;
  }

  const Millis timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Channel> channels_;  // by (from, to)
  std::optional<Error> failed_;
};

class ThreadWorld::Endpoint final : public Transport {
 public:
  Endpoint(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) { hub_->join(rank_); }
  ~Endpoint() override { hub_->leave(rank_); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  Result<void> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        const Operation& operation) override {
    return hub_->exchange(rank_, sends, receives, operation);
  }
  void abort(std::string_view reason) override { hub_->abort(rank_, reason); }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

ThreadWorld::ThreadWorld(int size, Millis timeout) : hub_(std::make_shared<Hub>(size, timeout)) {}
ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<Transport> ThreadWorld::join(int rank) { return std::make_unique<Endpoint>(hub_, rank); }

}  // namespace muster::train
