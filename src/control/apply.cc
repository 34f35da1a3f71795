// apply(): the only way in which the durable state changes, live and on load.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "control/control.h"

namespace muster::control {
namespace {

std::uint64_t number_of(const std::string& key) {
  const auto number = parse_int(key);
  MUSTER_ASSERT(number.has_value());
  return static_cast<std::uint64_t>(*number);
}

// Ids rise, and the first leave first: both ends are cheap.
void keep_queued(State& state, domain::JobId id, bool queued) {
  const auto place = std::lower_bound(state.queue.begin(), state.queue.end(), id);
  const bool is_there = place != state.queue.end() && *place == id;
  if (queued && !is_there) state.queue.insert(place, id);
  if (!queued && is_there) state.queue.erase(place);
}

struct PutRecord {
  State& state;

  void operator()(const domain::Counters& counters) const { state.counters = counters; }
  void operator()(const domain::Job& job) const {
    state.names[{job.kind, job.name}] = job.id;
    keep_queued(state, job.id, job.phase == domain::Phase::queued);
    if (job.phase != domain::Phase::ended) {
      state.jobs[job.id] = job;
      return;
    }
    state.jobs.erase(job.id);
    state.ended[job.id] = {job.id,           job.kind,      job.name,
                           job.created,      job.modified,  job.ended.value_or(job.modified),
                           job.end->outcome, job.end->cause};
  }
  void operator()(const domain::Attempt& attempt) const { state.attempts[attempt.id] = attempt; }
  void operator()(const domain::JobRequest&) const {}  // read from the store when needed
  void operator()(const domain::Outbox& outbox) const { state.outbox[outbox.sequence] = outbox; }
  void operator()(const domain::AccessKey& key) const { state.access_keys[key.id] = key; }
};

void erase_job(State& state, domain::JobId id) {
  keep_queued(state, id, false);
  if (const auto ended = state.ended.find(id); ended != state.ended.end()) {
    state.names.erase({ended->second.kind, ended->second.name});
    state.ended.erase(ended);
  }
  if (const auto live = state.jobs.find(id); live != state.jobs.end()) {
    state.names.erase({live->second.kind, live->second.name});
    state.jobs.erase(live);
  }
}

void erase(State& state, const domain::Erase& change) {
  switch (change.kind) {
    case domain::RecordKind::counters:
      state.counters = {};
      return;
    case domain::RecordKind::job:
      return erase_job(state, domain::JobId{number_of(change.key)});
    case domain::RecordKind::attempt:
      state.attempts.erase(domain::AttemptId{number_of(change.key)});
      return;
    case domain::RecordKind::request:
      return;
    case domain::RecordKind::outbox:
      state.outbox.erase(number_of(change.key));
      return;
    case domain::RecordKind::access_key:
      state.access_keys.erase(change.key);
      return;
  }
}

}  // namespace

void apply(State& state, const domain::Commit& commit) {
  for (const auto& change : commit.changes) {
    if (const auto* put = std::get_if<domain::Put>(&change)) {
      std::visit(PutRecord{state}, put->record);
    } else {
      erase(state, std::get<domain::Erase>(change));
    }
  }
}

void stamp(const State& state, domain::Commit& commit, Time now) {
  auto counters = state.counters;
  counters.last_time = now;
  commit.changes.emplace_back(domain::Put{counters});
}

bool same_durable_state(const State& a, const State& b) {
  return a.counters == b.counters && a.jobs == b.jobs && a.queue == b.queue && a.ended == b.ended &&
         a.names == b.names && a.attempts == b.attempts && a.outbox == b.outbox &&
         a.access_keys == b.access_keys;
}

}  // namespace muster::control
