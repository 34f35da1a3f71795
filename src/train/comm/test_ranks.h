// Tests on several ranks: each is a thread with a Comm of the thread backend (thread.h). Called by one
// thread, which waits for all of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "train/comm/thread.h"

namespace muster::train {

struct RanksOptions {
  std::string group = "world";
  Millis timeout{60'000};
  // What the ranks' messages go through, in place of the transport itself; made in rank order.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap = {};
};

// run(comm) on each of `size` ranks, and what it answers, if anything, in rank order. A rank that returns has
// left its group.
template <typename Run>
auto on_ranks(int size, Run run, const RanksOptions& options = {}) {
  ThreadWorld world(size, options.timeout);
  std::vector<std::unique_ptr<Comm>> comms;
  for (int rank = 0; rank < size; ++rank) {
    auto transport = world.join(rank);
    if (options.wrap) transport = options.wrap(std::move(transport));
    comms.push_back(std::make_unique<Comm>(options.group, std::move(transport)));
  }
  const auto each = [&](auto work) {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < comms.size(); ++rank) {
      threads.emplace_back([&, rank] {
        work(rank, *comms[rank]);
        comms[rank].reset();
      });
    }
  };
  using Answer = std::invoke_result_t<Run&, Comm&>;
  if constexpr (std::is_void_v<Answer>) {
    each([&](std::size_t, Comm& comm) { run(comm); });
  } else {
    std::vector<Answer> answers(comms.size());
    each([&](std::size_t rank, Comm& comm) { answers[rank] = run(comm); });
    return answers;
  }
}

}  // namespace muster::train
