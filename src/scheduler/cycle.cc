#include "scheduler/cycle.h"

#include <algorithm>

#include "base/assert.h"

namespace muster::scheduler {
namespace {

std::vector<domain::NodeName> candidates(const Snapshot& snapshot) {
  std::vector<domain::NodeName> names;
  for (const auto& node : snapshot.nodes) {
    if (node.healthy && node.held_by.empty()) names.push_back(node.name);
  }
  return names;
}

std::string count(int number, std::string_view noun) {
  return std::to_string(number) + " " + std::string(noun) + (number == 1 ? "" : "s");
}

std::string ordinal(int number) {
  const int tens = number % 100;
  const std::string_view suffix = tens >= 11 && tens <= 13 ? "th"
                                  : number % 10 == 1       ? "st"
                                  : number % 10 == 2       ? "nd"
                                  : number % 10 == 3       ? "rd"
                                                           : "th";
  return std::to_string(number) + std::string(suffix);
}

// The head of what is left after everything that fits has been admitted.
Blocked block_head(const Snapshot& snapshot, const std::vector<domain::NodeName>& taken,
                   const std::vector<std::string>& takers, const Gang& gang) {
  Blocked result;
  result.needs = gang.nodes;
  result.total = static_cast<int>(snapshot.nodes.size());
  for (const auto& node : snapshot.nodes) {
    if (!node.healthy) {
      result.unhealthy.push_back(node);
      continue;
    }
    auto holder = node.held_by;
    if (const auto at = std::find(taken.begin(), taken.end(), node.name); at != taken.end()) {
      holder = takers[static_cast<std::size_t>(at - taken.begin())];
    }
    if (holder.empty()) {
      ++result.free;
      continue;
    }
    auto known = std::find_if(result.holders.begin(), result.holders.end(),
                              [&](const auto& entry) { return entry.name == holder; });
    if (known == result.holders.end()) {
      result.holders.push_back({holder, 1});
    } else {
      ++known->nodes;
    }
  }
  return result;
}

}  // namespace

Plan plan(const Snapshot& snapshot, const std::vector<Gang>& queue) {
  Plan result;
  const auto nodes = candidates(snapshot);
  std::size_t used = 0;
  for (const auto& gang : queue) {
    const auto wanted = static_cast<std::size_t>(gang.nodes);
    if (nodes.size() - used < wanted) break;  // the head waits, and all behind it
    const auto first = nodes.begin() + static_cast<std::ptrdiff_t>(used);
    result.admitted.push_back({gang.job, {first, first + gang.nodes}});
    used += wanted;
  }
  return result;
}

std::optional<Blocked> blocked(const Snapshot& snapshot, const std::vector<Gang>& front, std::size_t place) {
  const auto admitted = plan(snapshot, front).admitted;
  if (place < admitted.size()) return std::nullopt;
  MUSTER_ASSERT(admitted.size() < front.size());
  std::vector<domain::NodeName> taken;
  std::vector<std::string> takers;
  for (std::size_t i = 0; i < admitted.size(); ++i) {
    for (const auto& node : admitted[i].nodes) {
      taken.push_back(node);
      takers.push_back("job " + front[i].name);
    }
  }
  const auto& head = front[admitted.size()];
  auto result = block_head(snapshot, taken, takers, head);
  if (place > admitted.size()) result.head = head.name;
  result.position = static_cast<int>(place - admitted.size()) + 1;
  return result;
}

std::string describe(const Blocked& blocked) {
  std::string text;
  if (!blocked.head.empty()) {
    text = "is " + ordinal(blocked.position) + " in the queue, behind job " + blocked.head + ", which ";
  }
  text += "needs " + count(blocked.needs, "node") + "; ";
  if (blocked.needs > blocked.total) {
    return text + "this service has " + std::to_string(blocked.total) + ": it starts when nodes are added";
  }
  text += std::to_string(blocked.free) + " of " + std::to_string(blocked.total) +
          (blocked.free == 1 ? " is free" : " are free");
  for (const auto& holder : blocked.holders) {
    text += ", " + std::to_string(holder.nodes) + (holder.nodes == 1 ? " is" : " are") + " held by " +
            holder.name;
  }
  for (const auto& node : blocked.unhealthy) {
    text += ", " + node.name + " is not healthy";
    if (!node.unhealthy_because.empty()) text += " (" + node.unhealthy_because + ")";
  }
  return text;
}

}  // namespace muster::scheduler
