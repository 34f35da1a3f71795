#include "store/memory/store.h"

#include "wire/record/record.h"

namespace muster::store {

Result<ports::StoreMeta> MemoryStore::meta() { return meta_; }

Result<ports::StoreMeta> MemoryStore::open_epoch() {
  ++meta_.epoch;
  return meta_;
}

Result<domain::Commit> MemoryStore::load() {
  domain::Commit commit;
  for (const auto& [id, stored] : records_) {
    const auto kind = static_cast<domain::RecordKind>(id.first);
    if (kind == domain::RecordKind::request) continue;
    MUSTER_TRY(auto record, wire::decode_record(kind, stored.version, stored.body));
    commit.changes.emplace_back(domain::Put{std::move(record)});
  }
  return commit;
}

Result<std::optional<domain::Record>> MemoryStore::read(domain::RecordKind kind, std::string_view key) {
  const auto found = records_.find({static_cast<int>(kind), std::string(key)});
  if (found == records_.end()) return std::nullopt;
  MUSTER_TRY(auto record, wire::decode_record(kind, found->second.version, found->second.body));
  return record;
}

Result<ports::StoreMeta> MemoryStore::commit(std::uint64_t expected_sequence, std::uint64_t epoch,
                                             const domain::Commit& commit) {
  if (expected_sequence != meta_.commit_sequence || epoch != meta_.epoch) {
    return fail(ErrorCode::failed_precondition,
                "the store is at commit " + std::to_string(meta_.commit_sequence) + " of epoch " +
                    std::to_string(meta_.epoch) + ", not at " + std::to_string(expected_sequence) +
                    " of epoch " + std::to_string(epoch) + ": another process writes to it");
  }
  if (commits_left_) {
    if (*commits_left_ == 0) return fail(ErrorCode::io, "the store was told to fail");
    --*commits_left_;
  }
  for (const auto& change : commit.changes) {
    if (const auto* put = std::get_if<domain::Put>(&change)) {
      auto& stored = records_[{static_cast<int>(kind_of(put->record)), key_of(put->record)}];
      if (!stored.body.empty()) ++stored.revision;
      stored.version = wire::kRecordVersion;
      stored.body = wire::encode_record(put->record);
    } else {
      const auto& erase = std::get<domain::Erase>(change);
      records_.erase({static_cast<int>(erase.kind), erase.key});
    }
  }
  ++meta_.commit_sequence;
  return meta_;
}

}  // namespace muster::store
