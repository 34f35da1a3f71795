// The state of the control plane: durable records plus what the engine was last seen to do. Pure value, owned
// by the one control thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "domain/cluster.h"
#include "domain/commit.h"
#include "domain/job.h"
#include "domain/report.h"

namespace muster::control {

// A small index entry for each ended job; the whole record stays in the store.
struct EndedJob {
  domain::JobId id;
  domain::JobKind kind = domain::JobKind::training;
  std::string name;
  Time created;
  Time modified;
  Time ended;
  domain::Outcome outcome = domain::Outcome::succeeded;
  domain::Cause cause = domain::Cause::program;
  bool operator==(const EndedJob&) const = default;
};

// What the engine was last seen to hold for one launch.
struct Seen {
  domain::NodeName node;
  bool alive = true;  // false: ended, not released yet; it still holds its node
};

// How one launch has behaved since this process looked. Durations are counted by ticks, each worth at most
// kTickMax, so a step of the wall clock or a suspended machine cannot end a job.
struct Guard {
  std::uint64_t heard = 0;  // moment of its last report, poll, or launch; 0: never
  Millis silent{0};         // since then
  Millis stopping{0};       // since its stop was asked for, while its command may run
  Millis leaving{0};        // since its uploads are done, until its final report
  std::string message;      // its last words, for explain()
};

struct State {
  // ---- durable ----
  domain::Counters counters;
  std::map<domain::JobId, domain::Job> jobs;  // live; FIFO order is id order
  std::vector<domain::JobId> queue;           // those of `jobs` that are queued, in order
  std::map<domain::JobId, EndedJob> ended;
  std::map<std::pair<domain::JobKind, std::string>, domain::JobId> names;  // live and ended
  std::map<domain::AttemptId, domain::Attempt> attempts;                   // of live jobs
  std::map<std::uint64_t, domain::Outbox> outbox;
  std::map<std::string, domain::AccessKey> access_keys;
  // ---- volatile: never committed, empty after a load ----
  std::vector<domain::Node> nodes;  // the engine's last inventory
  bool inventory_known = false;     // nothing is placed before the first one
  std::map<domain::LaunchId, Seen> seen;
  std::map<domain::LaunchId, Guard> guards;
  std::map<domain::AttemptId, Millis> running;  // run time, by ticks on top of Attempt::ran
  std::set<domain::AttemptId> launching;        // launches that the effect executor has in hand
  std::uint64_t moment = 0;  // counts observations: what is newer than what, whatever the wall clock does
};

// Equal durable parts: what a crash and a load must preserve.
bool same_durable_state(const State& a, const State& b);

}  // namespace muster::control
