// The store of the simulated control plane: the memory store, a world that makes it fail, and a shadow of
// what is durable. One thread, that of its world.
#pragma once

#include <functional>

#include "control/control.h"
#include "store/memory/store.h"

namespace muster::sim {

// Thrown where the control process dies.
struct Crash {};

class SimStore final : public ports::Store {
 public:
  enum class Fate { passes, fails, fails_late, crash_before, crash_after };

  // Asked at every commit.
  std::function<Fate()> fate = [] { return Fate::passes; };
  // Called with the state before, after every durable commit.
  std::function<void(const control::State& before)> committed = [](const auto&) {};

  // The durable state, kept by applying what was written.
  const control::State& shadow() const { return shadow_; }

  Result<ports::StoreMeta> meta() override { return store_.meta(); }
  Result<ports::StoreMeta> open_epoch() override { return store_.open_epoch(); }
  Result<domain::Commit> load() override { return store_.load(); }
  Result<std::optional<domain::Record>> read(domain::RecordKind kind, std::string_view key) override {
    return store_.read(kind, key);
  }
  Result<ports::StoreMeta> commit(std::uint64_t expected_sequence, std::uint64_t epoch,
                                  const domain::Commit& commit) override {
    const auto chosen = fate();
    if (chosen == Fate::crash_before) throw Crash{};
    if (chosen == Fate::fails) return fail(ErrorCode::io, "the simulated disk is full");
    MUSTER_TRY(const auto meta, store_.commit(expected_sequence, epoch, commit));
    const auto before = shadow_;
    control::apply(shadow_, commit);
    committed(before);
    if (chosen == Fate::crash_after) throw Crash{};
    if (chosen == Fate::fails_late) return fail(ErrorCode::io, "the simulated disk answered too late");
    return meta;
  }

 private:
  store::MemoryStore store_;
  control::State shadow_;
};

}  // namespace muster::sim
