// The durable state of the control plane, as the service loop sees it. Owned and called by the one control
// thread. Adapters: store/sqlite, store/memory; one contract suite (store/contract).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ballast.h"
#include "base/error.h"
#include "domain/commit.h"

namespace muster::ports {

struct StoreMeta {
  std::uint64_t commit_sequence = 0;  // of the last commit
  std::uint64_t epoch = 0;            // rises with every opening: fences an older process
  int format = 1;
};

class Store {
 public:
  virtual ~Store() = default;
  virtual Result<StoreMeta> meta() = 0;
  // Takes the next epoch: every later commit must carry it.
  virtual Result<StoreMeta> open_epoch() = 0;
  // Every current record but those of kind `request` (up to 0.4 MB each; read one by one when needed).
  virtual Result<domain::Commit> load() = 0;
  virtual Result<std::optional<domain::Record>> read(domain::RecordKind kind, std::string_view key) = 0;
  // All or nothing, durable on return. failed_precondition when the sequence or the epoch has moved.
  virtual Result<StoreMeta> commit(std::uint64_t expected_sequence, std::uint64_t epoch,
                                   const domain::Commit& commit) = 0;
  // While the space kept for bad days is in use: new jobs are refused so that stops and ends can still be
  // written.
  virtual std::optional<Shortage> low_on_space() { return std::nullopt; }
};

}  // namespace muster::ports
