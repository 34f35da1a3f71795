// One scheduling cycle: which waiting gangs get which nodes. Pure: the same snapshot gives the same plan on
// every machine.
//
// A gang gets all its nodes or none. Nodes are exclusive: a node that is held, or is not healthy, is no
// candidate. The order is strictly first in, first out: while the head waits, everything behind it waits, so
// no gang starves behind smaller ones. Nodes are taken in the order of the inventory, rank by rank.
//
// Cost: O(nodes + admitted gangs). Why strict order: docs/adr/0007-gang-fifo.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "domain/ids.h"

namespace muster::scheduler {

struct NodeState {
  domain::NodeName name;
  bool healthy = true;
  std::string unhealthy_because;
  std::string held_by;  // "job a", or what else holds it; empty: free
};

struct Snapshot {
  std::vector<NodeState> nodes;
};

struct Gang {
  domain::JobId job;
  std::string name;
  int nodes = 1;  // >= 1
};

struct Admission {
  domain::JobId job;
  std::vector<domain::NodeName> nodes;  // node of rank r; size == gang.nodes
};

struct Plan {
  std::vector<Admission> admitted;
};

// `queue` in order of arrival.
[[nodiscard]] Plan plan(const Snapshot& snapshot, const std::vector<Gang>& queue);

// Why one gang of the queue waits. The numbers are of the snapshot: exactly one sentence a gang.
struct Blocked {
  int needs = 1;
  int total = 0;
  int free = 0;
  struct Holder {
    std::string name;
    int nodes = 0;
  };
  std::vector<Holder> holders;  // in the order of their first node
  std::vector<NodeState> unhealthy;
  std::string head;  // not empty: waits behind this job
  int position = 1;  // in the queue, from 1
};

// Of the gang at `place` of the queue, from 0. `front`: the first gangs of the queue, all of them or one more
// than there are nodes; so the cost does not grow with the queue. nullopt: it would be admitted now.
[[nodiscard]] std::optional<Blocked> blocked(const Snapshot& snapshot, const std::vector<Gang>& front,
                                             std::size_t place);

// "needs 4 nodes; 2 of 4 are free, 2 are held by a". "is 2nd in the queue, behind a, which needs 4 nodes;
// ...".
[[nodiscard]] std::string describe(const Blocked& blocked);

}  // namespace muster::scheduler
