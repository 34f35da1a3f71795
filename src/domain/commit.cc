#include "domain/commit.h"

namespace muster::domain {

RecordKind kind_of(const Record& record) { return static_cast<RecordKind>(record.index() + 1); }

namespace {
struct Key {
  std::string operator()(const Counters&) const { return "counters"; }
  std::string operator()(const Job& job) const { return to_string(job.id); }
  std::string operator()(const Attempt& attempt) const { return to_string(attempt.id); }
  std::string operator()(const JobRequest& request) const { return to_string(request.job); }
  std::string operator()(const Outbox& outbox) const { return std::to_string(outbox.sequence); }
  std::string operator()(const AccessKey& key) const { return key.id; }
};
}  // namespace

std::string key_of(const Record& record) { return std::visit(Key{}, record); }

}  // namespace muster::domain
