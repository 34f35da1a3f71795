// The Store in memory, for tests and the simulation. Holds encoded records, so the codecs are exercised as
// by a disk. Like a disk it outlives its users: open_epoch() and load() serve a restarted loop.
//
// Faults: fail_after(n) lets n commits pass and fails the next ones until heal(). One thread, as the port
// asks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ports/store.h"

namespace muster::store {

class MemoryStore final : public ports::Store {
 public:
  Result<ports::StoreMeta> meta() override;
  Result<ports::StoreMeta> open_epoch() override;
  Result<domain::Commit> load() override;
  Result<std::optional<domain::Record>> read(domain::RecordKind kind, std::string_view key) override;
  Result<ports::StoreMeta> commit(std::uint64_t expected_sequence, std::uint64_t epoch,
                                  const domain::Commit& commit) override;

  void fail_after(std::uint64_t commits) { commits_left_ = commits; }
  void heal() { commits_left_.reset(); }

 private:
  struct Stored {
    std::uint64_t revision = 1;
    int version = 1;
    std::string body;
  };
  ports::StoreMeta meta_;
  std::map<std::pair<int, std::string>, Stored> records_;
  std::optional<std::uint64_t> commits_left_;
};

}  // namespace muster::store
