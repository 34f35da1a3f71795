// The unit of durability: an ordered list of whole-record puts and erases. Pure values.
//
// The store keeps current records only. Loading is one Commit of puts given to control::apply, the same
// function that changes the live state. How a record looks on disk is wire/record's:
// docs/formats/records-v1.md.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/time.h"
#include "domain/job.h"
#include "domain/workload.h"

namespace muster::domain {

// Next ids, and the last committed time (time never goes back across a restart).
struct Counters {
  std::uint64_t next_job = 1;
  std::uint64_t next_attempt = 1;
  std::uint64_t next_outbox = 1;
  Time last_time;
  bool operator==(const Counters&) const = default;
};

// Immutable: the request as received (JSON object text) and the workload made of it. Read when needed, never
// held in State.
struct JobRequest {
  JobId job;
  std::string request;
  Workload workload;
  bool operator==(const JobRequest&) const = default;
};

// An effect that cannot be derived from state; erased when done.
struct Outbox {
  std::uint64_t sequence = 0;
  std::string kind;  // "forget-logs"
  std::string body;  // JSON
  bool operator==(const Outbox&) const = default;
};

// A long-lived access key; the secret is sealed by keys/master.
struct AccessKey {
  std::string id;
  std::string sealed_secret;
  std::string user;
  Time created;
  bool operator==(const AccessKey&) const = default;
};

using Record = std::variant<Counters, Job, Attempt, JobRequest, Outbox, AccessKey>;

// Numbers are stored: never reuse one. In the order of Record's alternatives.
enum class RecordKind : int { counters = 1, job = 2, attempt = 3, request = 4, outbox = 5, access_key = 6 };
RecordKind kind_of(const Record& record);
std::string key_of(
    const Record& record);  // unique within its kind: "counters", a job id, an access key id, ...

struct Put {
  Record record;
};
struct Erase {
  RecordKind kind = RecordKind::job;
  std::string key;
};
using Change = std::variant<Put, Erase>;

struct Commit {
  std::vector<Change> changes;
  bool empty() const { return changes.empty(); }
};

}  // namespace muster::domain
